// Sleeps, as benchmarks/sleeps.py.
package main

import (
	"math/rand"
	"sync"
	"time"

	"gofer/benchmarks/bench"
)

const longest = 500 * time.Millisecond

func main() {
	tasks := bench.Size("tasks")
	random := rand.New(rand.NewSource(1))
	delays := make([]time.Duration, tasks)
	for i := range delays {
		delays[i] = time.Duration(random.Float64() * float64(longest))
	}
	meter := bench.Start()
	var wg sync.WaitGroup
	wg.Add(tasks)
	for _, delay := range delays {
		go func() {
			time.Sleep(delay)
			wg.Done()
		}()
	}
	wg.Wait()
	meter.Stop(tasks)
}
