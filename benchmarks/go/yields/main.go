// Yield, as benchmarks/yields.py.
package main

import (
	"runtime"
	"sync"

	"gofer/benchmarks/bench"
)

func main() {
	tasks, rounds := bench.Size("tasks"), bench.Size("rounds")
	meter := bench.Start()
	var wg sync.WaitGroup
	wg.Add(tasks)
	for range tasks {
		go func() {
			for range rounds {
				runtime.Gosched()
			}
			wg.Done()
		}()
	}
	wg.Wait()
	meter.Stop(tasks * rounds)
}
