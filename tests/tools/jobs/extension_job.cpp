// What extension_job.py builds: with a header and a library of torch, though one that compiles in half a second.
#include <c10/util/thread_name.h>

extern "C" int answer() { return c10::getThreadName().empty() ? 0 : 42; }
