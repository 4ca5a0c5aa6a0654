// Mutex, as benchmarks/mutex.py.
package main

import (
	"sync"

	"gofer/benchmarks/bench"
)

func main() {
	pairs, tasks := bench.Size("pairs"), bench.Size("tasks")
	var mu sync.Mutex
	counter := 0
	meter := bench.Start()
	var wg sync.WaitGroup
	wg.Add(tasks)
	for range tasks {
		go func() {
			for range pairs / tasks {
				mu.Lock()
				counter++
				mu.Unlock()
			}
			wg.Done()
		}()
	}
	wg.Wait()
	meter.Stop(pairs)
	if counter != pairs {
		panic("the mutex did not protect the counter")
	}
}
