/* Socket addresses, as Python's socket module writes them: (host, port) for IPv4, (host, port, flowinfo,
 * scope_id) for IPv6, a str or (abstract) bytes for Unix sockets. Numbers only: names are resolved before. */
#include "net.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/un.h>

static PyObject *unix_path(const struct sockaddr_un *un, socklen_t len)
{
    size_t n = len > offsetof(struct sockaddr_un, sun_path)
                   ? len - offsetof(struct sockaddr_un, sun_path)
                   : 0;
    if (n > 0 && un->sun_path[0] == '\0') { /* Linux: an abstract name */
        return PyBytes_FromStringAndSize(un->sun_path, (Py_ssize_t)n);
    }
    return PyUnicode_DecodeFSDefaultAndSize(un->sun_path, (Py_ssize_t)strnlen(un->sun_path, n));
}

PyObject *addr_to_object(const Address *a, socklen_t len)
{
    char host[INET6_ADDRSTRLEN];
    const struct sockaddr_in *in = (const struct sockaddr_in *)a;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)a;
    if (len < sizeof a->sa.sa_family) {
        return PyUnicode_FromString("");
    }
    switch (a->sa.sa_family) {
    case AF_INET:
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        return Py_BuildValue("si", host, (int)ntohs(in->sin_port));
    case AF_INET6:
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
        return Py_BuildValue("siII", host, (int)ntohs(in6->sin6_port),
                             (unsigned int)ntohl(in6->sin6_flowinfo),
                             (unsigned int)in6->sin6_scope_id);
    case AF_UNIX:
        return unix_path((const struct sockaddr_un *)a, len);
    default:
        return Py_BuildValue("iy#", (int)a->sa.sa_family, a->sa.sa_data,
                             (Py_ssize_t)(len - offsetof(struct sockaddr, sa_data)));
    }
}

static socklen_t inet_from_object(PyObject *obj, int family, Address *a)
{
    const char *host;
    int port;
    unsigned int flow = 0, scope = 0;
    if (!PyTuple_Check(obj) || PyTuple_GET_SIZE(obj) < 2) {
        PyErr_Format(PyExc_TypeError, "an address is a tuple (host, port), not %R", obj);
        return 0;
    }
    if (!PyArg_ParseTuple(obj, "si|II", &host, &port, &flow, &scope)) {
        return 0;
    }
    if (port < 0 || port > 65535) {
        PyErr_Format(PyExc_ValueError, "a port is between 0 and 65535, not %d", port);
        return 0;
    }
    memset(a, 0, sizeof *a);
    struct sockaddr_in *in = (struct sockaddr_in *)a;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)a;
    if (family == AF_INET && inet_pton(AF_INET, host, &in->sin_addr) == 1) {
        in->sin_family = AF_INET;
        in->sin_port = htons((uint16_t)port);
        return sizeof *in;
    }
    if (family == AF_INET6) {
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons((uint16_t)port);
        in6->sin6_flowinfo = htonl(flow);
        in6->sin6_scope_id = scope;
        uint8_t *last4 = in6->sin6_addr.s6_addr + 12;
        if (inet_pton(AF_INET6, host, &in6->sin6_addr) == 1) {
            return sizeof *in6;
        }
        if (inet_pton(AF_INET, host, last4) == 1) { /* ::ffff:1.2.3.4 */
            memset(last4 - 2, 0xff, 2);
            return sizeof *in6;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "%R is no numeric address of this socket's family: resolve it first", obj);
    return 0;
}

socklen_t addr_from_object(PyObject *obj, int family, Address *a)
{
    if (family != AF_UNIX) {
        return inet_from_object(obj, family, a);
    }
    PyObject *path;
    if (PyBytes_Check(obj)) {
        path = Py_NewRef(obj);
    }
    else if (!PyUnicode_FSConverter(obj, &path)) {
        return 0;
    }
    struct sockaddr_un *un = (struct sockaddr_un *)a;
    Py_ssize_t n = PyBytes_GET_SIZE(path);
    bool fits = n < (Py_ssize_t)sizeof un->sun_path;
    if (fits) {
        memset(un, 0, sizeof *un);
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, PyBytes_AS_STRING(path), (size_t)n);
    }
    else {
        PyErr_Format(PyExc_ValueError, "the path %R is too long for a socket", obj);
    }
    bool abstract = n > 0 && PyBytes_AS_STRING(path)[0] == '\0';
    Py_DECREF(path);
    return fits ? (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n + !abstract) : 0;
}
