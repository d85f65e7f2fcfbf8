/* The run of a job, in a mount namespace of the task's own; and mounts where only root can change names, such as the
 * constant path. Runs as root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "warmstart.h"

#define DIGITS "0123456789"
#define PROC_PATH 64

/* Return whether a name is JOB.RESTARTS, as the prolog names a run's directory: digits, a dot, eight hexadecimal ones. */
static bool is_run(const char *name, size_t length)
{
	size_t digits = strspn(name, DIGITS);

	return digits > 0 && length == digits + 9 && name[digits] == '.' &&
	       strspn(name + digits + 1, DIGITS "abcdef") >= 8;
}

/* Open the directory JOB.RESTARTS if `cache` has the form WORKSPACE/JOB.RESTARTS/cache and only root can change the
 * directories above it. The cache must belong to the job's owner, so a forged view gives the owner another run of their
 * own, or none. */
static int open_run(const struct settings *settings, const char *cache, uid_t uid)
{
	char run[NAME_MAX + 1];
	const char *name;
	size_t length = strlen(settings->workspace);
	int above, directory, own;

	errno = EINVAL;
	if (strncmp(cache, settings->workspace, length) != 0 || cache[length] != '/')
		return -1;
	name = cache + length + 1;
	length = strcspn(name, "/");
	if (length > NAME_MAX || !is_run(name, length) || strcmp(name + length, "/cache") != 0)
		return -1;
	memcpy(run, name, length);
	run[length] = '\0';
	above = open_trusted(settings->workspace);
	if (above < 0)
		return -1;
	directory = open_beneath(above, run, 0);
	close(above);
	if (directory < 0)
		return -1;
	own = open_beneath(directory, "cache", uid);
	if (own < 0) {
		close(directory);
		return -1;
	}
	close(own);
	return directory;
}

int enter_run(const struct settings *settings, const char *cache, uid_t uid)
{
	/* Descriptors opened before unshare() refer to the old namespace, so this one only checks that there is a run. */
	int run = open_run(settings, cache, uid);

	if (run < 0)
		return -1;
	close(run);
	/* Slave: later mounts and unmounts on the node propagate into this namespace, and none propagate out. */
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", "none", MS_REC | MS_SLAVE, NULL) < 0)
		return -1;
	return open_run(settings, cache, uid);
}

static int open_target(const char *path)
{
	int fd = open_trusted(path);

	if (fd >= 0 || errno != ENOENT)
		return fd;
	/* The node booted without it. The second walk checks its parents. */
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return -1;
	return open_trusted(path);
}

static int mount_at(int source, int target)
{
	char from[PROC_PATH], to[PROC_PATH];

	snprintf(from, sizeof(from), "/proc/self/fd/%d", source);
	snprintf(to, sizeof(to), "/proc/self/fd/%d", target);
	/* Recursive: the profiles' overlays are mounted in the cache. They keep their own nosuid and nodev. */
	return mount(from, to, "none", MS_BIND | MS_REC, NULL);
}

/* A bind mount inherits its source's flags, and a remount replaces all of them: add ours to them. */
static int restrict_mount(const char *path, int source, bool read_only)
{
	struct statvfs found;
	unsigned long flags = MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV;

	if (fstatvfs(source, &found) < 0)
		return -1;
	flags |= (read_only || found.f_flag & ST_RDONLY ? MS_RDONLY : 0) | (found.f_flag & ST_NOEXEC ? MS_NOEXEC : 0);
	return mount("none", path, "none", flags, NULL);
}

int show_as_root(int run, const struct shown *shown)
{
	int source = open_source(run, shown->source), target, failed;

	if (source < 0)
		return -1;
	target = open_target(shown->target);
	if (target < 0) {
		failed = errno;
		close(source);
		errno = failed;
		return -1;
	}
	failed = mount_at(source, target) < 0 ? errno : 0;
	/* By path, because `target` refers to the directory below the mount. Only root can change this path. */
	if (failed == 0 && restrict_mount(shown->target, source, shown->read_only) < 0) {
		failed = errno;
		umount2(shown->target, MNT_DETACH);
	}
	close(target);
	close(source);
	errno = failed;
	return failed == 0 ? 0 : -1;
}
