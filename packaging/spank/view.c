/* Read the files of the job's view, RUN/view/JOB, in a directory of root's. Where the file system has no access control
 * lists, the files are the job owner's, who can then change what is in them. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include "warmstart.h"

#define LARGEST (1 << 20)
#define FILE_FLAGS (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

static bool is_name(const char *text)
{
	return *text != '\0' && *text != '.' && strlen(text) <= NAME_MAX && strchr(text, '/') == NULL;
}

/* Open a file with a user's rights instead of root's: the kernel checks the file's access control list. */
static int open_as(uid_t uid, int directory, const char *name)
{
	uid_t own = (uid_t)setfsuid(uid);
	int file = -1, failed = EPERM;

	if ((uid_t)setfsuid(uid) == uid) { /* what it was before this call; it reports no errors */
		file = openat(directory, name, FILE_FLAGS);
		failed = errno;
	}
	setfsuid(own);
	errno = failed;
	return file;
}

static int open_file(const struct settings *settings, const char *job, uid_t uid, const char *name)
{
	char path[PATH_MAX];
	int views, view, file;

	if (!is_name(job)) {
		errno = EINVAL;
		return -1;
	}
	if (snprintf(path, sizeof(path), "%s/view", settings->run) >= (int)sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	views = open_trusted(path);
	if (views < 0)
		return -1;
	view = open_beneath(views, job, 0);
	close(views);
	if (view < 0)
		return -1;
	file = open_as(uid, view, name);
	close(view);
	return file;
}

/* Return a file's contents with two NULs appended, NULL with errno on failure. Only root or the user may own it. */
static char *read_all(int fd, uid_t uid, size_t *length)
{
	struct stat found;
	char *text;
	ssize_t got;
	size_t used = 0;

	if (fstat(fd, &found) < 0)
		return NULL;
	if (!S_ISREG(found.st_mode) || (found.st_uid != 0 && found.st_uid != uid) || found.st_size > LARGEST) {
		errno = EPERM;
		return NULL;
	}
	text = malloc((size_t)found.st_size + 2);
	if (text == NULL)
		return NULL;
	while (used < (size_t)found.st_size) {
		got = read(fd, text + used, (size_t)found.st_size - used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	text[used] = '\0';
	text[used + 1] = '\0';
	*length = used;
	return text;
}

int view_read(const struct settings *settings, const char *job, uid_t uid, struct view *view)
{
	const char **header[] = {&view->workspace, &view->constant, &view->cache};
	int fd = open_file(settings, job, uid, "environment");
	size_t length;
	char *line;

	if (fd < 0)
		return -1;
	line = view->text = read_all(fd, uid, &length);
	close(fd);
	if (line == NULL)
		return -1;
	/* What has no newline was cut off. */
	while (length > 0 && line[length - 1] != '\n')
		length--;
	line[length] = line[length + 1] = '\0';
	/* A NUL in the file ends its line early. The two appended NULs end the last line and the list. */
	for (size_t i = 0; i < length; i++)
		if (line[i] == '\n')
			line[i] = '\0';
	for (size_t i = 0; i < sizeof(header) / sizeof(*header); i++) {
		if (*line == '\0') { /* the three are never empty, so the text ended too early */
			view_free(view);
			errno = EINVAL;
			return -1;
		}
		*header[i] = line;
		line += strlen(line) + 1;
	}
	view->variables = line;
	return 0;
}

char *view_text(const struct settings *settings, const char *job, uid_t uid, const char *name, char path[PATH_MAX])
{
	int fd = open_file(settings, job, uid, name);
	char self[32];
	size_t length;
	ssize_t got;
	char *text;

	if (fd < 0)
		return NULL;
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	got = readlink(self, path, PATH_MAX - 1);
	path[got < 0 ? 0 : got] = '\0';
	text = read_all(fd, uid, &length);
	close(fd);
	return text;
}

char *view_variable(char *line, struct variable *variable)
{
	char *next, *equals, *name;

	for (; *line != '\0'; line = next) {
		next = line + strlen(line) + 1;
		variable->forced = *line == '!';
		name = line + variable->forced;
		equals = strchr(name, '=');
		if (equals == NULL || equals == name || isdigit((unsigned char)*name))
			continue;
		*equals = '\0';
		variable->name = name;
		variable->value = equals + 1;
		return next;
	}
	return NULL;
}

void view_free(struct view *view)
{
	free(view->text);
	*view = (struct view){0};
}
