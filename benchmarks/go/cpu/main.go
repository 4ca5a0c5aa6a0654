// CPU, as benchmarks/cpu.py.
package main

import (
	"sync"
	"sync/atomic"

	"gofer/benchmarks/bench"
)

func work(loops int) int {
	total := 0
	for i := range loops {
		total += i * i % 1000
	}
	return total
}

func main() {
	tasks, loops := bench.Size("tasks"), bench.Size("loops")
	var sum atomic.Int64 // uses the results, so that the work cannot be dropped
	meter := bench.Start()
	var wg sync.WaitGroup
	wg.Add(tasks)
	for range tasks {
		go func() {
			sum.Add(int64(work(loops)))
			wg.Done()
		}()
	}
	wg.Wait()
	meter.Stop(tasks)
}
