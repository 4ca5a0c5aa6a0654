// Many producers, many consumers, as benchmarks/mpmc.py.
package main

import (
	"sync"
	"sync/atomic"

	"gofer/benchmarks/bench"
)

const (
	producers = 8
	consumers = 8
	capacity  = 64
)

func main() {
	items := bench.Size("items")
	ch := make(chan int, capacity)
	var received atomic.Int64
	meter := bench.Start()
	var producing, consuming sync.WaitGroup
	consuming.Add(consumers)
	for range consumers {
		go func() {
			count := 0
			for range ch {
				count++
			}
			received.Add(int64(count))
			consuming.Done()
		}()
	}
	producing.Add(producers)
	for range producers {
		go func() {
			for i := range items / producers {
				ch <- i
			}
			producing.Done()
		}()
	}
	producing.Wait()
	close(ch)
	consuming.Wait()
	meter.Stop(items)
	if received.Load() != int64(items) {
		panic("items were lost")
	}
}
