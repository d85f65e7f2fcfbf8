/* Open paths that only root can change, component by component, without following links. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "warmstart.h"

#define DIRECTORY (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

int look(int directory, const char *path, struct stat *found)
{
	struct statx seen;

	if (statx(directory, path, AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &seen) < 0)
		return -1;
	memset(found, 0, sizeof(*found));
	found->st_dev = makedev(seen.stx_dev_major, seen.stx_dev_minor);
	found->st_ino = seen.stx_ino;
	found->st_uid = seen.stx_uid;
	found->st_mode = seen.stx_mode;
	return 0;
}

/* Return whether `owner` owns a directory. Others may write one of root's only if it is sticky, because then they
 * cannot rename root's entries in it. */
static bool is_trusted(const struct stat *found, uid_t owner)
{
	if (found->st_uid != owner)
		return false;
	return owner != 0 || !(found->st_mode & (S_IWGRP | S_IWOTH)) || (found->st_mode & S_ISVTX);
}

int open_beneath(int parent, const char *name, uid_t owner)
{
	struct stat found;
	int fd = openat(parent, name, DIRECTORY);

	if (fd < 0)
		return -1;
	if (look(fd, "", &found) == 0 && is_trusted(&found, owner))
		return fd;
	close(fd);
	errno = EPERM;
	return -1;
}

int open_trusted(const char *path)
{
	char name[NAME_MAX + 1];
	size_t length;
	int fd, next;

	if (*path != '/') {
		errno = EINVAL;
		return -1;
	}
	fd = open("/", DIRECTORY);
	while (fd >= 0 && *(path += strspn(path, "/")) != '\0') {
		length = strcspn(path, "/");
		if (length > NAME_MAX || strncmp(path, "..", length) == 0) {
			close(fd);
			errno = EINVAL;
			return -1;
		}
		memcpy(name, path, length);
		name[length] = '\0';
		path += length;
		next = open_beneath(fd, name, 0);
		close(fd);
		fd = next;
	}
	return fd;
}
