"""A job that has NVIDIA's driver compile PTX, by its own interface; nothing but the driver is needed.

The driver counts nothing. A kernel that it has in its cache is not compiled again, so the time tells.
"""

from __future__ import annotations

import ctypes
import time

from report import report

COUNT = 64  # threads
STEPS = 4000  # lines of code, so that compiling takes a while
HEAD = """\
.version 7.0
.target sm_75
.address_size 64
.visible .entry work(.param .u64 out)
{
    .reg .u32 %r<4>;
    .reg .u64 %d<4>;
    .reg .f32 %f<4>;
    ld.param.u64 %d0, [out];
    cvta.to.global.u64 %d0, %d0;
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d1, %r0, 4;
    add.u64 %d0, %d0, %d1;
    cvt.rn.f32.u32 %f0, %r0;
    mov.f32 %f1, 0f3F000000;
"""


def ptx() -> bytes:
    """Return a kernel of many dependent operations."""
    lines = ["    fma.rn.f32 %f0, %f0, %f1, %f1;" if n % 2 else "    sin.approx.f32 %f0, %f0;" for n in range(STEPS)]
    return (HEAD + "\n".join(lines) + "\n    st.global.f32 [%d0], %f0;\n    ret;\n}\n").encode()


def main() -> None:
    """Compile, run, report."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if status := getattr(cuda, name)(*arguments):
            raise OSError(f"{name}: error {status}")

    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    work, out = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    started = time.perf_counter()
    call("cuModuleLoadData", ctypes.byref(module), ptx())
    call("cuModuleGetFunction", ctypes.byref(work), module, b"work")  # a driver may load lazily: only now
    seconds = time.perf_counter() - started
    call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(4 * COUNT))
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(out), ctypes.c_void_p))
    call("cuLaunchKernel", work, 1, 1, 1, COUNT, 1, 1, 0, None, arguments, None)
    values = ctypes.create_string_buffer(4 * COUNT)
    call("cuMemcpyDtoH_v2", values, out, ctypes.c_size_t(4 * COUNT))
    report(seconds, values.raw, packages=(), hits=None, misses=None)


if __name__ == "__main__":
    main()
