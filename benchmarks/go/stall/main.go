// Stall, as benchmarks/stall.py. `kind` says which of its groups.
package main

import (
	"sync"
	"syscall"
	"time"

	"gofer/benchmarks/bench"
)

const period = 10 * time.Millisecond

// block does what a goroutine should not do for long, for some milliseconds.
func block(kind, ms int) {
	length := time.Duration(ms) * time.Millisecond
	if kind == 0 {
		// A bare system call: time.Sleep would only park the goroutine.
		rest := syscall.NsecToTimespec(length.Nanoseconds())
		for syscall.Nanosleep(&rest, &rest) == syscall.EINTR {
		}
		return
	}
	for end := time.Now().Add(length); time.Now().Before(end); {
	}
}

func main() {
	tickers, blockers := bench.Size("tickers"), bench.Size("blockers")
	kind, ms := bench.Size("kind"), bench.Size("ms")
	var done = make(chan struct{})
	var mu sync.Mutex
	var delays []float64
	var ticking, blocking sync.WaitGroup
	meter := bench.Start()
	for range tickers {
		ticking.Add(1)
		go func() {
			defer ticking.Done()
			var own []float64
			for last := time.Now(); ; {
				time.Sleep(period)
				now := time.Now()
				own = append(own, (now.Sub(last) - period).Seconds())
				last = now
				select {
				case <-done:
					mu.Lock()
					delays = append(delays, own...)
					mu.Unlock()
					return
				default:
				}
			}
		}()
	}
	time.Sleep(100 * time.Millisecond)
	for range blockers {
		blocking.Add(1)
		go func() {
			defer blocking.Done()
			block(kind, ms)
		}()
	}
	blocking.Wait()
	close(done)
	ticking.Wait()
	meter.Delays = delays
	meter.Stop(len(delays))
}
