/* Futures, as future.c and select.c see them. All of it with the P in P_USER: it calls into Python. */
#ifndef GOFER_FUTURE_H
#define GOFER_FUTURE_H

#include "chan.h"

extern PyTypeObject FutureOp_Type;

PyObject *future_begin(PyObject *op); /* the ChanOp to wait for, borrowed; NULL with an exception */
PyObject *future_result(PyObject *op); /* that has fired: the result, or NULL with an exception */
void future_give_up(PyObject *op);     /* nobody waits for it any more; keeps the exception */
extern PyMethodDef future_module_methods[];

#endif
