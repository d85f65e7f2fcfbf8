/* What the plugin's parts share. Nothing here is a promise to anybody outside of this directory. */
#ifndef WARMSTART_H
#define WARMSTART_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The plugin's arguments in plugstack.conf, all absolute paths. */
struct settings {
	const char *state;     /* state=     where this installation keeps its state */
	const char *workspace; /* workspace= the policy's paths.workspace */
	const char *cache;     /* cache=     the policy's paths.cache: the constant path */
};

/* A job's view as task-prolog reads it too: three paths, then one variable a line. The job owns the file, so
 * none of it is believed: `cache` is opened as docs/inside-the-job.md says, or not at all. */
struct view {
	char *text; /* all of it; the rest points into it */
	const char *workspace;
	const char *constant;
	const char *cache;
	char *variables; /* NAME=VALUE or !NAME=VALUE lines, NUL for each newline, ends with an empty one */
};

/* One variable of a view. */
struct variable {
	const char *name;
	const char *value;
	bool forced; /* the user can't set this one for himself */
};

/* options.c: a sentence that says what is wrong with a value, NULL when nothing is. */
const char *image_problem(const char *value);
const char *profiles_problem(const char *value);

/* view.c: 0, or -1 with errno; ENOENT where warmstart knows nothing of the job. */
int view_read(const struct settings *settings, const char *node, const char *job, uid_t uid, struct view *view);
char *view_verdict(const struct settings *settings, const char *node, const char *job, uid_t uid); /* NULL: none */
char *view_variable(char *line, struct variable *variable); /* the next line, NULL after the last one */
void view_free(struct view *view);

/* trusted.c: a descriptor (O_PATH) of a directory, or -1 with errno. Follows no link. */
int open_trusted(const char *path);
int open_beneath(int parent, const char *name, uid_t owner);

/* mount.c: give this process a mount namespace of its own with `cache` at the constant path; 0, or -1 with errno. */
int bind_cache(const struct settings *settings, const char *node, const char *cache, uid_t uid);

#endif
