// The echo server, as benchmarks/echo.py.
package main

import "gofer/benchmarks/bench"

func main() {
	bench.Echo()
}
