/* Declarations shared by the plugin's sources. Private to this directory. */
#ifndef WARMSTART_H
#define WARMSTART_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The plugin's arguments in plugstack.conf; all are absolute paths. */
struct settings {
	const char *state;     /* state=     this installation's state directory */
	const char *workspace; /* workspace= the policy's paths.workspace */
	const char *cache;     /* cache=     the policy's paths.cache: the constant path */
};

/* A job's view, which the task prolog reads, too: three paths, then one variable per line. The job's owner can change
 * the file, so it is not trusted: mount.c checks `cache` (docs/start/inside-the-job.md). */
struct view {
	char *text; /* the whole file, allocated; the other members point into it */
	const char *workspace;
	const char *constant;
	const char *cache;
	char *variables; /* NAME=VALUE or !NAME=VALUE lines, each ended by NUL; an empty line ends the list */
};

/* One variable of a view. */
struct variable {
	const char *name;
	const char *value;
	bool forced; /* overrides the user's own value */
};

/* options.c: what is wrong with a value, to be put after "the value of --OPTION"; NULL if it is valid. */
const char *image_problem(const char *value);
const char *profiles_problem(const char *value);

/* view.c: 0, or -1 with errno; ENOENT if there is no view for the job. */
int view_read(const struct settings *settings, const char *node, const char *job, uid_t uid, struct view *view);
char *view_text(const struct settings *settings, const char *node, const char *job, uid_t uid, const char *name,
		char path[PATH_MAX]); /* the text of the view's file `name`, allocated, and its path; NULL: none */
char *view_variable(char *line, struct variable *variable); /* parses one; the rest, NULL after the last one */
void view_free(struct view *view);

/* trusted.c: a descriptor (O_PATH) of a directory, or -1 with errno. Neither follows links. open_trusted() takes an
 * absolute path that only root can change, open_beneath() a name in `parent` that `owner` owns. */
int open_trusted(const char *path);
int open_beneath(int parent, const char *name, uid_t owner);

/* The job's owner. */
struct owner {
	uid_t uid;
	gid_t gid;
	gid_t *groups; /* supplementary */
	size_t count;
};

/* mount.c: move this process into a new mount namespace with `cache` at the constant path; 0, or -1 with errno. */
int bind_cache(const struct settings *settings, const char *node, const char *cache, uid_t uid);

/* mount.c: a descriptor of the directory JOB.RUN if `cache` has the form WORKSPACE/NODE/JOB.RUN/cache and only root can
 * change the directories above it; -1 with errno otherwise. */
int open_run(const struct settings *settings, const char *node, const char *cache);

/* tree.c: in that namespace, show the job its tree, if it has one; 0, or -1 with errno. ANOTHER_TREE: another directory
 * is there than the prolog saw; it is left as it is. */
enum { ANOTHER_TREE = 1 };
int bind_tree(const struct settings *settings, const char *node, const char *cache, const struct owner *owner);

#endif
