// Select, as benchmarks/selects.py.
package main

import (
	"sync"

	"gofer/benchmarks/bench"
)

func receive(a, b, c, d <-chan int) {
	select {
	case <-a:
	case <-b:
	case <-c:
	case <-d:
	}
}

// Without a sender, each channel holds as many values as there are selects.
func ready(selects int) {
	var channels [4]chan int
	for i := range channels {
		channels[i] = make(chan int, selects)
		for j := range selects {
			channels[i] <- j
		}
	}
	meter := bench.Start()
	done := make(chan struct{})
	go func() {
		for range selects {
			receive(channels[0], channels[1], channels[2], channels[3])
		}
		close(done)
	}()
	<-done
	meter.Stop(selects)
}

// The sender is asked for each value, so on one P it cannot come before the select has gone to
// wait. The question has room in its channel: whoever asks does not wait for it to be taken.
func idle(selects int) {
	ask := make(chan int, 1)
	var channels [4]chan int
	for i := range channels {
		channels[i] = make(chan int)
	}
	meter := bench.Start()
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		for i := range selects {
			ask <- i
			receive(channels[0], channels[1], channels[2], channels[3])
		}
		wg.Done()
	}()
	go func() {
		for range selects {
			i := <-ask
			channels[i%4] <- i
		}
		wg.Done()
	}()
	wg.Wait()
	meter.Stop(selects)
}

func main() {
	selects := bench.Size("selects")
	if bench.Size("senders") == 0 {
		ready(selects)
	} else {
		idle(selects)
	}
}
