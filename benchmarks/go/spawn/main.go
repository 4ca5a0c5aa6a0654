// Spawn and join, as benchmarks/spawn.py.
package main

import (
	"sync"

	"gofer/benchmarks/bench"
)

// A result nobody reads would let the compiler drop the addition.
var results []int

func main() {
	tasks, batch := bench.Size("tasks"), bench.Size("batch")
	if batch == 0 {
		batch = tasks
	}
	results = make([]int, batch)
	meter := bench.Start()
	var wg sync.WaitGroup
	for done := 0; done < tasks; done += batch {
		wg.Add(batch)
		for i := range batch {
			go func() {
				results[i] = i + 1
				wg.Done()
			}()
		}
		wg.Wait()
	}
	meter.Stop(tasks)
}
