package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"time"
)

func echo(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 65536)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Echo serves, under the load program of the environment, until that has said its result.
func Echo() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				panic(err)
			}
			go echo(conn)
		}
	}()
	port := listener.Addr().(*net.TCPAddr).Port
	args := append(os.Args[1:], "port="+strconv.Itoa(port))
	load := exec.Command(os.Getenv("GOFER_BENCH_LOAD"), args...)
	in, _ := load.StdinPipe()
	out, _ := load.StdoutPipe()
	if err := load.Start(); err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	runtime.GC()
	m := Meter{rss: statusBytes("VmRSS:"), cpu: cpuSeconds(), start: time.Now()}
	fmt.Fprintln(in)
	lines.Scan()
	seconds, cpu := time.Since(m.start).Seconds(), cpuSeconds()-m.cpu
	var said struct {
		P99 float64 `json:"p99_us"`
	}
	if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
		panic(err)
	}
	line, err := json.Marshal(map[string]any{
		"ops":         Size("requests"),
		"seconds":     seconds,
		"cpu_seconds": cpu,
		"grown_bytes": statusBytes("VmRSS:") - m.rss,
		"peak_bytes":  statusBytes("VmHWM:"),
		"p99_seconds": said.P99 / 1e6,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}
