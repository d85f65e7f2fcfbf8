/* A stand-in for the plugin of soperator that moves a step into the jail, a directory that is a mount: as there, in
 * slurm_spank_init_post_opt(), in the step's daemon, for all steps but the extern one. Its argument is the jail. */
#define _GNU_SOURCE
#include <sched.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

SPANK_PLUGIN(chroot, 1)

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
	uint32_t step;

	if (spank_context() != S_CTX_REMOTE || count != 1)
		return 0;
	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step == SLURM_EXTERN_CONT)
		return 0;
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", "none", MS_REC | MS_SLAVE, NULL) < 0 || chdir(arguments[0]) < 0 ||
	    syscall(SYS_pivot_root, ".", "mnt") < 0 || umount2("/mnt", MNT_DETACH) < 0 || chdir("/") < 0 ||
	    umount2("/proc", MNT_DETACH) < 0 || mount("proc", "/proc", "proc", 0, NULL) < 0) {
		slurm_error("chroot: %s: %m", arguments[0]);
		return -1;
	}
	return 0;
}
