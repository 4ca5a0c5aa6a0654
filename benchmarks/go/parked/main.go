// Parked, as benchmarks/parked.py.
package main

import (
	"sync/atomic"
	"time"

	"gofer/benchmarks/bench"
)

const settle = 50 * time.Millisecond

func main() {
	tasks := bench.Size("tasks")
	gate := make(chan struct{})
	var arrived atomic.Int64
	meter := bench.Start()
	for range tasks {
		go func() {
			arrived.Add(1)
			<-gate
		}()
	}
	for arrived.Load() < int64(tasks) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(settle)
	meter.Stop(tasks)
}
