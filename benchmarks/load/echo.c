/* Load for an echo server: `echo port=P conns=C size=S requests=N rate=R http=0|1`.
 *
 * C connections, each with one request under way: it writes S bytes and reads S bytes, which must be the same.
 * One thread, epoll, so that it needs less of the machine than any server. After a tenth of the requests it
 * prints "ready" and waits for a line on stdin; then N requests are counted. With a rate it starts R requests a
 * second, on connections that are free, and latency counts from when a request was due. With http a request is
 * a GET, and an answer is as long as the first one was. Without requests it only holds the connections, until
 * stdin ends. Prints one JSON line. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int fd;
    int busy;
    long got;
    int64_t since_ns;
} Connection;

static long port, conns, size, requests, rate, http;
static long answer; /* bytes of one */
static Connection *all;
static char *out, *in;
static int poller;
static int64_t *latencies;
static long started, finished;

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void connect_all(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (long i = 0; i < conns; i++) {
        int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
            die("connect");
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)i};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) {
            die("epoll_ctl");
        }
        all[i].fd = fd;
    }
}

static void start(Connection *c, int64_t due_ns)
{
    c->busy = 1;
    c->got = 0;
    c->since_ns = due_ns;
    started++;
    if (send(c->fd, out, (size_t)size, MSG_NOSIGNAL) != size) {
        die("send");
    }
}

/* True: an answer is complete. */
static int receive(Connection *c)
{
    ssize_t n = recv(c->fd, in, (size_t)(answer - c->got), MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) {
        return 0;
    }
    if (n <= 0 || (!http && memcmp(in, out + c->got, (size_t)n) != 0)) {
        die(n <= 0 ? "recv" : "what came back is not what was sent");
    }
    c->got += n;
    return c->got == answer;
}

static void run(long total, int measure)
{
    struct epoll_event events[64];
    int64_t begin = now_ns();
    long next_free = 0;
    started = finished = 0;
    for (long i = 0; rate == 0 && i < conns && started < total; i++) {
        start(&all[i], now_ns());
    }
    while (finished < total) {
        int timeout = -1;
        if (rate > 0 && started < total) {
            int64_t due = begin + started * 1000000000LL / rate, now = now_ns();
            while (due <= now && started < total) {
                long tried = 0;
                while (all[next_free].busy && tried++ < conns) {
                    next_free = (next_free + 1) % conns;
                }
                if (all[next_free].busy) {
                    break; /* all are: the server is behind, and that counts */
                }
                start(&all[next_free], due);
                due = begin + started * 1000000000LL / rate;
            }
            timeout = 0;
        }
        int n = epoll_wait(poller, events, 64, timeout);
        for (int i = 0; i < n; i++) {
            Connection *c = &all[events[i].data.u64];
            if (!receive(c)) {
                continue;
            }
            int64_t now = now_ns();
            if (measure) {
                latencies[finished] = now - c->since_ns;
            }
            finished++;
            c->busy = 0;
            if (rate == 0 && started < total) {
                start(c, now);
            }
        }
    }
}

/* How long an answer is: all that comes within 0.3 s. */
static void measure_answer(void)
{
    struct timeval patience = {.tv_usec = 300000};
    ssize_t n;
    setsockopt(all[0].fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (send(all[0].fd, out, (size_t)size, MSG_NOSIGNAL) != size) {
        die("send");
    }
    while ((n = recv(all[0].fd, in, 65536, 0)) > 0) {
        answer += n;
    }
    if (answer == 0) {
        die("no answer");
    }
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double us_at(double share)
{
    long i = (long)(share * (double)requests);
    return (double)latencies[i < requests ? i : requests - 1] / 1e3;
}

int main(int argc, char **argv)
{
    struct {
        const char *name;
        long *value;
    } wanted[] = {{"port", &port}, {"conns", &conns}, {"size", &size}, {"requests", &requests}, {"rate", &rate}, {"http", &http}};
    for (int i = 1; i < argc; i++) {
        for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
            size_t len = strlen(wanted[k].name);
            if (strncmp(argv[i], wanted[k].name, len) == 0 && argv[i][len] == '=') {
                *wanted[k].value = atol(argv[i] + len + 1);
            }
        }
    }
    if (port <= 0 || conns <= 0 || (size <= 0 && !http)) {
        fprintf(stderr, "port, conns and size must be given\n");
        return 2;
    }
    static char get[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n";
    size = http ? (long)strlen(get) : size;
    answer = http ? 0 : size;
    all = calloc((size_t)conns, sizeof *all);
    out = http ? get : malloc((size_t)size);
    in = malloc(65536 + (size_t)size);
    latencies = calloc((size_t)requests + 1, sizeof *latencies);
    for (long i = 0; !http && i < size; i++) {
        out[i] = (char)(i * 7 + i / 251);
    }
    poller = epoll_create1(0);
    connect_all();
    if (http) {
        measure_answer();
    }
    if (requests > 0) {
        run(requests / 10 + conns, 0);
    }
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF || requests == 0) {
        return 0;
    }
    int64_t begin = now_ns();
    run(requests, 1);
    double seconds = (double)(now_ns() - begin) / 1e9;
    qsort(latencies, (size_t)requests, sizeof *latencies, by_size);
    printf("{\"seconds\": %.6f, \"per_second\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
           seconds, (double)requests / seconds, us_at(0.5), us_at(0.99), us_at(1));
    return 0;
}
