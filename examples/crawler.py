"""A crawler with bounded concurrency, and a small web to crawl, both in this program.

Pages link to other pages. A WorkerPool fetches at most 8 at a time; what it finds is submitted in
turn, once.
"""

import re
import time

import gofer
from gofer import atomic, net

PAGES, LINKS, WORKERS = 200, 5, 8


busy, peaks = atomic.Int(), [0]  # requests under way, on whatever P


async def page(conn: net.Conn) -> None:
    """Answer one request, slowly, as the web does."""
    async with conn:
        request = await conn.read_until(b"\r\n\r\n")
        peaks.append(busy.add(1))
        n = int(request.split()[1][1:])
        await gofer.sleep(0.01)
        links = " ".join(f'<a href="/{(n * LINKS + i) % PAGES}">' for i in range(1, LINKS + 1))
        busy.add(-1)
        await conn.write(f"HTTP/1.0 200 OK\r\n\r\n<title>{n}</title> {links}".encode())


async def serve(listener: net.Listener) -> None:
    async for conn in listener:
        gofer.go(page, conn)


async def main() -> None:
    async with net.listen("127.0.0.1", 0) as listener:
        gofer.go(serve, listener)
        host, port = listener.addr

        async def fetch(n: int) -> list[int]:
            """The pages that page n links to."""
            async with await net.dial(host, port, timeout=5) as conn:
                await conn.write(f"GET /{n} HTTP/1.0\r\n\r\n".encode())
                text = b""
                while data := await conn.read():
                    text += data
            return [int(m) for m in re.findall(rb'href="/(\d+)"', text)]

        started = time.perf_counter()
        seen, waiting = {0}, 1
        async with gofer.WorkerPool(WORKERS, fetch, queue=PAGES) as pool:
            await pool.submit(0)
            async for result in pool.results:
                waiting -= 1
                for link in result.value or []:
                    if link not in seen:
                        seen.add(link)
                        waiting += 1
                        await pool.submit(link)
                if waiting == 0:
                    break
        seconds = time.perf_counter() - started
    print(f"{len(seen)} pages in {seconds:.2f} s by {WORKERS} workers;")
    print(f"   the server saw at most {max(peaks)} requests at a time")
    print(f"   one after the other would have taken at least {PAGES * 0.01:.1f} s")


if __name__ == "__main__":
    gofer.run(main)
