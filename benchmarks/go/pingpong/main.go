// Ping-pong, as benchmarks/pingpong.py.
package main

import (
	"sync"

	"gofer/benchmarks/bench"
)

func main() {
	rounds := bench.Size("rounds")
	there, back := make(chan int), make(chan int)
	meter := bench.Start()
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		for i := range rounds {
			there <- i
			<-back
		}
		wg.Done()
	}()
	go func() {
		for range rounds {
			back <- <-there
		}
		wg.Done()
	}()
	wg.Wait()
	meter.Stop(rounds)
}
