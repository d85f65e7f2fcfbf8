/* Show a job what its run has for it: the lines of WORKSPACE/JOB.RESTARTS/shown, which root has written
 * (docs/adr/index.md, 51).
 *
 *   MODE  WHOSE  SOURCE  SEEN  TARGET  OTHERWISE        between tabs; none is empty (hooks/warmstart/paths.py, Shown)
 *
 * Only what root wrote there decides what is mounted where. Where only root can change the names above a target, it is
 * made if it is missing (mount.c). Other paths lead through directories that users can change, perhaps on a file system
 * where root is nobody: a child with the job's ids opens them, following no link, and hands over descriptors. A mount
 * goes with a directory that is renamed, and ends with one that is removed: tasks that run read what is put at its path
 * then. So do those that start later: nothing is mounted on another directory than the prolog saw.
 *
 * Calls newer than some C libraries are made by number; a kernel without them (before 5.12) leaves the task at such a
 * path what is there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "warmstart.h"

#define LONGEST_REQUEST (PATH_MAX + 128)
enum { OPEN_TREE_CALL = 428, MOVE_MOUNT_CALL = 429, OPENAT2_CALL = 437, MOUNT_SETATTR_CALL = 442 };
enum { CLONE_TREE = 1, RECURSIVE = 0x8000, BETWEEN_DESCRIPTORS = 0x04 | 0x40 }; /* linux/mount.h */
enum { NO_LINKS = 0x04 | 0x02 };						/* linux/openat2.h: none at all, magic or not */
enum { READ_ONLY_MOUNT = 0x01, NO_SETUID = 0x02, NO_DEVICES = 0x04 };			/* linux/mount.h */
#define LARGEST_LIST (1 << 18)
#define PATIENCE_S 10								/* with the targets' file system */

struct how { /* open_how */
	uint64_t flags, mode, resolve;
};

struct attributes { /* mount_attr */
	uint64_t set, clear, propagation, userns;
};

/* Send an answer: with a descriptor, if one is given. */
static void hand_over(int channel, int fd, bool differs)
{
	char space[CMSG_SPACE(sizeof(fd))] = {0}, byte = differs;
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
	struct cmsghdr *header;

	if (fd >= 0) {
		message.msg_control = space;
		message.msg_controllen = sizeof(space);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	}
	sendmsg(channel, &message, MSG_NOSIGNAL);
}

/* Receive an answer: whether there is one, and its descriptor, or -1. */
static bool received(int channel, int *fd, bool *differs)
{
	char space[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
	struct cmsghdr *header;

	*fd = -1;
	if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != 1)
		return false;
	header = CMSG_FIRSTHDR(&message);
	if (header != NULL && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(*fd)))
		memcpy(fd, CMSG_DATA(header), sizeof(*fd));
	*differs = byte != 0;
	return true;
}

char *read_list(int run)
{
	struct stat found;
	int fd = openat(run, "shown", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	ssize_t got = -1;
	char *text = NULL;

	if (fd < 0)
		return NULL;
	if (fstat(fd, &found) == 0) {
		errno = EPERM;
		if (S_ISREG(found.st_mode) && found.st_uid == 0 && found.st_size <= LARGEST_LIST)
			text = calloc((size_t)found.st_size + 1, 1);
	}
	if (text != NULL)
		got = read(fd, text, (size_t)found.st_size);
	close(fd);
	if (got >= 0)
		return text;
	free(text);
	return NULL;
}

bool next_shown(char **list, struct shown *shown)
{
	char *line, *whose, *mode;

	while ((line = strsep(list, "\n")) != NULL) {
		mode = strsep(&line, "\t");
		whose = strsep(&line, "\t");
		shown->source = strsep(&line, "\t");
		shown->seen = strsep(&line, "\t");
		shown->target = strsep(&line, "\t");
		shown->otherwise = line;
		if (line == NULL || *shown->target != '/')
			continue;
		shown->read_only = strcmp(mode, "ro") == 0;
		shown->is_roots = strcmp(whose, "root") == 0;
		return true;
	}
	return false;
}

/* Return whether a directory or file is another than the prolog saw, if it said which. */
static bool is_another(int fd, const char *seen)
{
	uintmax_t device, inode, birth, born;
	struct statx found;

	if (strcmp(seen, NOTHING) == 0)
		return false;
	if (sscanf(seen, "%ju %ju %ju", &device, &inode, &birth) != 3 ||
	    statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &found) < 0)
		return true;
	born = (uintmax_t)found.stx_btime.tv_sec * 1000000000 + found.stx_btime.tv_nsec;
	return makedev(found.stx_dev_major, found.stx_dev_minor) != device || found.stx_ino != inode ||
	       (birth != 0 && (found.stx_mask & STATX_BTIME) != 0 && born != birth);
}

/* In the child: open directories or files as the job's owner, and look at them: the file system may refuse root. The
 * kernel mounts no file on a directory, and no directory on a file. */
static void open_and_hand_over(const struct owner *owner, int channel)
{
	struct how how = {.flags = O_PATH | O_CLOEXEC, .resolve = NO_LINKS};
	char request[LONGEST_REQUEST];
	ssize_t length;
	int fd;

	if (setgroups(owner->count, owner->groups) < 0 || setresgid(owner->gid, owner->gid, owner->gid) < 0 ||
	    setresuid(owner->uid, owner->uid, owner->uid) < 0)
		_exit(1);
	while ((length = recv(channel, request, sizeof(request), 0)) > 0 && request[length - 1] == '\0') {
		fd = (int)syscall(OPENAT2_CALL, AT_FDCWD, request + strlen(request) + 1, &how, sizeof(how));
		hand_over(channel, fd, fd >= 0 && is_another(fd, request));
		if (fd >= 0)
			close(fd);
	}
	_exit(0);
}

/* Return whether a descriptor is of what is at a path without links. Where the kernel lets processes be traced
 * that have changed their ids, the owner could have made the child hand over another. */
static bool is_at(int fd, const char *path)
{
	char self[32], found[PATH_MAX];
	ssize_t length;

	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	length = readlink(self, found, sizeof(found));
	return length > 0 && (size_t)length == strlen(path) && memcmp(found, path, (size_t)length) == 0;
}

/* The child, while a list is shown. One that does not answer has no successor: its file system would not, either. */
static struct {
	int channel;
	pid_t child;
	enum { NONE, AT_WORK, SILENT } state;
} opener;

static void start_opener(const struct owner *owner)
{
	struct timeval patience = {.tv_sec = PATIENCE_S};
	int channels[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channels) < 0)
		return;
	opener.child = fork();
	if (opener.child == 0) {
		close(channels[0]); /* or it would not see the end */
		open_and_hand_over(owner, channels[1]);
	}
	close(channels[1]);
	opener.channel = channels[0];
	setsockopt(channels[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	opener.state = AT_WORK;
}

void end_opener(void)
{
	if (opener.state == AT_WORK) {
		close(opener.channel);
		if (opener.child > 0) {
			kill(opener.child, SIGKILL); /* its owner may have stopped it */
			waitpid(opener.child, NULL, 0);
		}
	}
	opener.state = NONE;
}

static int open_as_owner(const char *path, const char *seen, const struct owner *owner, bool *differs)
{
	char request[LONGEST_REQUEST];
	int fd = -1, length = snprintf(request, sizeof(request), "%s%c%s", seen, '\0', path) + 1;

	if (opener.state == NONE)
		start_opener(owner);
	if (opener.state == AT_WORK && length <= (int)sizeof(request) &&
	    (send(opener.channel, request, (size_t)length, MSG_NOSIGNAL) != length ||
	     !received(opener.channel, &fd, differs))) {
		if (opener.child > 0) {
			kill(opener.child, SIGKILL);
			waitpid(opener.child, NULL, WNOHANG); /* where the file system hangs, it cannot be waited for */
		}
		close(opener.channel);
		opener.state = SILENT;
	}
	if (fd >= 0 && !is_at(fd, path)) {
		close(fd);
		fd = -1;
	}
	if (fd < 0)
		errno = ENOENT;
	return fd;
}

int open_source(int run, const char *source)
{
	char name[NAME_MAX + 1];
	size_t length;
	int fd = openat(run, ".", O_PATH | O_DIRECTORY | O_CLOEXEC), next, kind;

	for (; fd >= 0 && *source != '\0'; source += strspn(source, "/")) {
		length = strcspn(source, "/");
		if (length > NAME_MAX) {
			close(fd);
			errno = ENAMETOOLONG;
			return -1;
		}
		memcpy(name, source, length);
		name[length] = '\0';
		source += length;
		kind = *source == '\0' ? 0 : O_DIRECTORY; /* the last name may be a file's */
		next = openat(fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC | kind);
		close(fd);
		fd = next;
	}
	return fd;
}

static int mount_on(int source, int target, bool read_only)
{
	struct attributes attributes = {.set = NO_SETUID | NO_DEVICES};
	int mounted = (int)syscall(OPEN_TREE_CALL, source, "", CLONE_TREE | O_CLOEXEC | AT_EMPTY_PATH | RECURSIVE), failed;

	if (mounted < 0)
		return -1;
	if (read_only)
		attributes.set |= READ_ONLY_MOUNT;
	failed = syscall(MOUNT_SETATTR_CALL, mounted, "", AT_EMPTY_PATH | RECURSIVE, &attributes, sizeof(attributes)) < 0 ||
		 syscall(MOVE_MOUNT_CALL, mounted, "", target, "", BETWEEN_DESCRIPTORS) < 0;
	failed = failed ? errno : 0;
	close(mounted);
	errno = failed;
	return failed == 0 ? 0 : -1;
}

int show_with_rights(int run, const struct shown *shown, const struct owner *owner)
{
	bool differs = false;
	int target = open_as_owner(shown->target, shown->seen, owner, &differs), source, result = -1, failed;

	if (target < 0)
		return -1;
	if (differs) {
		close(target);
		return ANOTHER;
	}
	source = strcmp(shown->source, NOTHING) == 0 ? dup(target) : open_source(run, shown->source);
	if (source >= 0)
		result = mount_on(source, target, shown->read_only);
	failed = errno;
	if (source >= 0)
		close(source);
	close(target);
	errno = failed;
	return result;
}
