"""TLS connections whose ends are read, written, cancelled and closed at the same time."""

import random
import shutil
import ssl

import pytest

import gofer
from gofer import net
from tests.net_support import Certificate, conn_pair, make_certificate, raised_by
from tests.support import rounds

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="the openssl program, which makes the certificates, is not installed",
)

DATA = random.Random(6).randbytes(100_000)


@pytest.fixture(scope="module")
def cert(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("cert"))


class End:
    """One end of a connection: reads and writes the same data."""

    def __init__(self, conn: net.TLSConn) -> None:
        self.conn = conn
        self.got = bytearray()
        self.clean = False

    async def read(self) -> None:
        while data := await self.conn.read(random.choice([10, 5000, 65536])):
            self.got += data
        self.clean = True

    async def write(self) -> None:
        at = 0
        while at < len(DATA):
            n = random.choice([1, 1000, 50_000])
            await self.conn.write(DATA[at : at + n])
            at += n
        self.conn.close_write()


async def begin(conn: net.Conn, settings: ssl.SSLContext, server: bool) -> net.TLSConn | None:
    """The handshake, unless that is cut short."""
    host = None if server else "localhost"
    try:
        return await net.start_tls(conn, settings, server_side=server, server_hostname=host)
    except (OSError, gofer.Cancelled):
        return None


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_nothing_but_the_data_and_a_clean_end_only_after_all_of_it(
    procs: int, cert: Certificate
) -> None:
    client_settings, server_settings = cert.client(), cert.server()

    async def one(rng: random.Random) -> None:
        a, b = conn_pair(unix=rng.random() < 0.5)
        dialled = gofer.go(begin, a, client_settings, False)
        accepted = gofer.go(begin, b, server_settings, True)
        if rng.random() < 0.1:
            while not (a.closed and b.closed):  # then TLS has them
                await gofer.gosched()
            await gofer.sleep(rng.random() * 0.002)
            rng.choice([dialled, accepted]).cancel()
        ends = [End(c) for c in (await dialled, await accepted) if c is not None]
        readers = [gofer.go(e.read) for e in ends]
        writers = [gofer.go(e.write) for e in ends]
        spoiled = len(ends) < 2
        if ends and rng.random() < 0.5:
            await gofer.sleep(rng.random() * 0.005)
            victim = rng.randrange(len(ends))
            match rng.randrange(3):
                case 0:
                    spoiled = True
                    ends[victim].conn.close()
                case 1:
                    spoiled = True
                    writers[victim].cancel()
                    await raised_by(writers[victim])
                    ends[victim].conn.close()
                case _:  # a reader may go, and another come in its place
                    readers[victim].cancel()
                    await raised_by(readers[victim])
                    readers.append(gofer.go(ends[victim].read))
        if spoiled:
            for e in ends:
                e.conn.set_deadline(0.5)
        errors = [await raised_by(g) for g in readers + writers]
        for error in errors:
            assert error is None or isinstance(error, OSError | gofer.Cancelled), error
        for e in ends:
            assert DATA.startswith(e.got)
            if not spoiled:
                assert e.clean, errors
                assert e.got == DATA
            e.conn.close()

    async def worker(seed: int) -> None:
        rng = random.Random(seed)
        for _ in rounds(divide_by=50):
            await one(rng)

    async def main() -> None:
        gs = [gofer.go(worker, i) for i in range(6)]
        for g in gs:
            await g

    gofer.run(main, procs=procs)
