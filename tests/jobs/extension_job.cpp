// What extension_job.py builds; without headers of torch it compiles in a second.
extern "C" int answer() { return 42; }
