// Producer and consumer, as benchmarks/prodcons.py.
package main

import (
	"sync"

	"gofer/benchmarks/bench"
)

const capacity = 128

func main() {
	items := bench.Size("items")
	ch := make(chan int, capacity)
	total := 0
	meter := bench.Start()
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		for i := range items {
			ch <- i
		}
		close(ch)
		wg.Done()
	}()
	go func() {
		for i := range ch {
			total += i
		}
		wg.Done()
	}()
	wg.Wait()
	meter.Stop(items)
	if total != items*(items-1)/2 {
		panic("items were lost")
	}
}
