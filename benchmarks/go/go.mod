module gofer/benchmarks

go 1.23
