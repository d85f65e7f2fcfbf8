"""Run a hook: `start.py MODULE PREFIX RELEASE`, by packaging/libexec/hook.in. Hot path; each run compiles this file.

A broken installation must not drain nodes: only the hook itself may return a status other than 0.
"""

import gc
import os
import sys

if __name__ == "__main__":
    gc.disable()  # a hook lives for milliseconds
    try:
        module, prefix, release = sys.argv[1:]
        # Resolve the link once: this run keeps its release even if `make install` installs another one meanwhile.
        release = os.path.realpath(release)
        seen = os.stat(release)
        if seen.st_mode & 0o022 or (seen.st_uid and seen.st_uid != os.geteuid()):
            job = os.environ.get("SLURM_JOB_ID", "")
            hook = module.rpartition(".")[2]
            words = f"warmstart: {hook} of job {job} did nothing: others than root can change {release}; "
            words += "chown -R root and chmod -R go-w what warmstart doctor names, and find out what was changed there"
            sys.stderr.write(f"{words}\n")
            argv = ["logger", "-t", "warmstart", "-p", "daemon.err", words]
            os.spawnv(os.P_WAIT, "/usr/bin/logger", argv)  # noqa: S606 - slurmd drops what a hook writes to stderr
            sys.stderr.flush()
            os._exit(0)
        sys.path.insert(0, release)
        from warmstart import hot

        hot.install(release)
        status = __import__(f"warmstart.{module}", fromlist=["main"]).main(prefix)
    except BaseException:  # noqa: BLE001 - whatever it is
        import traceback

        traceback.print_exc()
        status = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skip the interpreter's clean-up
