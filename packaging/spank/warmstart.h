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
	const char *run;       /* run=       this installation's state of runs */
	const char *workspace; /* workspace= the policy's paths.workspace */
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
const char *name_problem(const char *value);

/* view.c: 0, or -1 with errno; ENOENT if there is no view for the job. */
int view_read(const struct settings *settings, const char *job, uid_t uid, struct view *view);
char *view_text(const struct settings *settings, const char *job, uid_t uid, const char *name,
		char path[PATH_MAX]); /* the text of the view's file `name`, allocated, and its path; NULL: none */
char *view_variable(char *line, struct variable *variable); /* parses one; the rest, NULL after the last one */
void view_free(struct view *view);

/* trusted.c: a descriptor (O_PATH) of a directory, or -1 with errno. Neither follows links. open_trusted() takes an
 * absolute path that only root can change, open_beneath() a name in `parent` that `owner` owns. */
int open_trusted(const char *path);
int open_beneath(int parent, const char *name, uid_t owner);

/* trusted.c: device, inode, owner and mode of what a path leads to, or of `directory` itself for "". A file system of a
 * user's (FUSE) is not asked, so it cannot hold the task: the kernel answers with what it knows. 0, or -1 with errno. */
struct stat;
int look(int directory, const char *path, struct stat *found);

/* The job's owner. */
struct owner {
	uid_t uid;
	gid_t gid;
	gid_t *groups; /* supplementary */
	size_t count;
};

/* A line of the run's list: what the job sees at a path. */
struct shown {
	bool read_only;
	bool is_roots;	     /* only root can change the names above the target */
	const char *source;  /* a path in the run's directory, or NOTHING: what is at the target */
	const char *seen;    /* the directory at the target: device, inode, birth; NOTHING: any */
	const char *target;
	const char *otherwise; /* what to tell the job where another directory is there; NOTHING: no word */
};
#define NOTHING "-"

/* mount.c: move this process into a new mount namespace; a descriptor there of the run's directory that the view's
 * `cache` is in, or -1 with errno. */
int enter_run(const struct settings *settings, const char *cache, uid_t uid);

/* shown.c: the text of a run's list, allocated, or NULL with errno; its next line. The lines point into the text. */
char *read_list(int run);
bool next_shown(char **list, struct shown *shown);

/* A descriptor of a source in a run's directory, following no link, or -1 with errno. */
int open_source(int run, const char *source);

/* Show what a line says: mount.c where the target's names are root's alone, shown.c else. 0, or -1 with errno. ANOTHER:
 * another directory is there than the prolog saw; it is left as it is. */
enum { ANOTHER = 1 };
int show_as_root(int run, const struct shown *shown);
int show_with_rights(int run, const struct shown *shown, const struct owner *owner);

/* shown.c: end the child of show_with_rights. */
void end_opener(void);

#endif
