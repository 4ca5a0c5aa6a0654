// Package bench is what the Go side of every workload shares: sizes from the command line, and
// the same JSON line that the Python side prints.
package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Size gives the value of a name=value argument.
func Size(name string) int {
	for _, arg := range os.Args[1:] {
		if key, value, _ := strings.Cut(arg, "="); key == name {
			n, err := strconv.Atoi(value)
			if err != nil {
				panic(err)
			}
			return n
		}
	}
	panic("no size given: " + name)
}

// Meter holds the readings at the start of the measured part.
type Meter struct {
	Delays []float64 // in seconds, for workloads about them
	start  time.Time
	cpu    float64
	rss    int
}

// Start takes the readings after a collection, as the Python side does.
func Start() Meter {
	runtime.GC()
	return Meter{rss: statusBytes("VmRSS:"), cpu: cpuSeconds(), start: time.Now()}
}

// Stop takes the readings again and prints the sample.
func (m Meter) Stop(ops int) {
	seconds := time.Since(m.start).Seconds()
	cpu := cpuSeconds() - m.cpu
	sample := map[string]any{
		"ops":         ops,
		"seconds":     seconds,
		"cpu_seconds": cpu,
		"grown_bytes": statusBytes("VmRSS:") - m.rss,
		"peak_bytes":  statusBytes("VmHWM:"),
	}
	if len(m.Delays) > 0 {
		sort.Float64s(m.Delays)
		sample["worst_seconds"] = m.Delays[len(m.Delays)-1]
		sample["p99_seconds"] = m.Delays[len(m.Delays)*99/100]
	}
	line, err := json.Marshal(sample)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func statusBytes(field string) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	for _, line := range strings.Split(string(status), "\n") {
		if strings.HasPrefix(line, field) {
			kilobytes, err := strconv.Atoi(strings.Fields(line)[1])
			if err != nil {
				panic(err)
			}
			return kilobytes * 1024
		}
	}
	panic("no " + field)
}
