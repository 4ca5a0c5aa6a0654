// The echo server, as benchmarks/latency.py.
package main

import "gofer/benchmarks/bench"

func main() {
	bench.Echo()
}
