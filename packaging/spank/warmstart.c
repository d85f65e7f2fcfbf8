/* SPANK plugin: options for a job's requests to warmstart, and what the job's run shows it, such as its cache at the
 * constant path.
 *
 *   optional warmstart.so [run=DIR] [workspace=DIR]
 *
 * An error in a job's step is logged on the node and never fails the task: the job then uses its cache at the cache's
 * own path. Only a verdict fails the task. Facts (spank(8), Slurm 22.05): options reach the prolog through
 * spank_job_control_setenv() in the submitting command; a mount namespace made in slurm_spank_init() kills
 * every step under job_container/tmpfs, one made in slurm_spank_task_init_privileged() works. pyxis enters the container
 * in its slurm_spank_task_init() (0.24): a plugin listed after it is in the container in its own. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "warmstart.h"

#ifndef WARMSTART_RUN
#define WARMSTART_RUN "/run/warmstart"
#endif

#define LONGEST ((64 << 10) + 1) /* of a variable's value (steps/environment.py) */

/* The symbols that Slurm looks up by name; all others are hidden. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(warmstart, 1)
#pragma GCC visibility pop

enum { IMAGE, PROFILES, CACHE, FRESH, REFRESH, OFF };

static const char *const control[] = {"WARM_IMAGE", "WARM_PROFILE", "WARM_CACHE", "WARM_FRESH",
				      "WARM_REFRESH", "NO_WARM"};
static char *requested[sizeof(control) / sizeof(*control)];

/* State of one task, passed from slurm_spank_task_init_privileged() to slurm_spank_task_init() in the same process. */
static struct view view;
static char *verdict, *notice;
static char path[PATH_MAX]; /* of the notice */
static char *list;	   /* what the run shows */
static char otherwise[8192]; /* what the job is told of it */
static char inherited[LONGEST]; /* variables that another node of the job has set, a tab before each */
static bool at_constant_path;
static struct stat node_root, node_cache; /* "/" and the cache, before a container was entered */
static int node_run = -1;		  /* the directory that the cache is in */

/* What has a value, in the order of `options`, and how its value is checked. */
static const struct {
	const char *name, *form;
	const char *(*problem)(const char *value);
} valued[] = {
	{"warm-image", "REGISTRY/NAME:TAG", image_problem},
	{"warm-profile", "NAME or NAME,NAME", profiles_problem},
	{"warm-cache", "NAME", name_problem},
};

static int set_option(int which, const char *value, int remote)
{
	const char *problem = NULL;

	if (remote)
		return 0;
	if (which <= CACHE)
		problem = valued[which].problem(value);
	if (problem != NULL) {
		slurm_error("warmstart: the value of --%s %s; use %s", valued[which].name, problem, valued[which].form);
		return -1;
	}
	free(requested[which]);
	requested[which] = strdup(which <= CACHE ? value : "1");
	return requested[which] == NULL ? -1 : 0;
}

static struct spank_option options[] = {
	{"warm-image", "REF", "warmstart: make this image available before the job starts", 1, IMAGE, set_option},
	{"warm-profile", "NAMES", "warmstart: also seed the caches of these profiles (comma-separated)", 1, PROFILES,
	 set_option},
	{"warm-cache", "NAME", "warmstart: caches of this name, apart from your other jobs'", 1, CACHE, set_option},
	{"warm-fresh", NULL, "warmstart: start with empty caches; what the job builds replaces what is published", 0, FRESH,
	 set_option},
	{"warm-refresh", NULL, "warmstart: ask the registry what the tags of the job's images mean now", 0, REFRESH,
	 set_option},
	{"no-warm", NULL, "warmstart: do nothing for this job: no image, no caches, no harvest", 0, OFF, set_option},
	SPANK_OPTIONS_TABLE_END,
};

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	(void)count;
	(void)arguments;
	for (struct spank_option *option = options; option->name != NULL; option++)
		if (spank_option_register(spank, option) != ESPANK_SUCCESS)
			slurm_error("warmstart: cannot register --%s", option->name);
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
	spank_context_t context = spank_context();

	(void)count;
	(void)arguments;
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
		return 0;
	for (size_t which = 0; which < sizeof(requested) / sizeof(*requested); which++) {
		if (requested[which] == NULL)
			continue;
		if (spank_job_control_setenv(spank, control[which], requested[which], 1) != ESPANK_SUCCESS) {
			slurm_error("warmstart: cannot pass --%s to the prolog", options[which].name);
			return -1;
		}
	}
	return 0;
}

int slurm_spank_exit(spank_t spank, int count, char **arguments)
{
	(void)spank;
	(void)count;
	(void)arguments;
	for (size_t which = 0; which < sizeof(requested) / sizeof(*requested); which++) {
		free(requested[which]);
		requested[which] = NULL;
	}
	view_free(&view);
	free(verdict);
	free(notice);
	free(list);
	verdict = notice = list = NULL;
	return 0;
}

static struct settings settings_of(int count, char **arguments)
{
	struct settings settings = {WARMSTART_RUN, "/var/tmp/warmstart"};

	for (int i = 0; i < count; i++) {
		if (strncmp(arguments[i], "run=", 4) == 0)
			settings.run = arguments[i] + 4;
		else if (strncmp(arguments[i], "workspace=", 10) == 0)
			settings.workspace = arguments[i] + 10;
		else
			slurm_info("warmstart: unknown argument in plugstack.conf: %s", arguments[i]);
	}
	return settings;
}

/* Read a view's verdict into `verdict`, or, if it has none, its notice into `notice` and its variables into `view`. A
 * view may have a notice and no variables. */
static int read_view(const struct settings *settings, const char *job, uid_t uid)
{
	verdict = view_text(settings, job, uid, "verdict", path);
	if (verdict != NULL)
		return 0;
	free(notice);
	notice = view_text(settings, job, uid, "notice", path);
	if (view_read(settings, job, uid, &view) == 0)
		return 0;
	return notice != NULL && errno == ENOENT ? 0 : -1;
}

/* Find the job's view by the step's job id, else by SLURM_JOB_ID: in a heterogeneous job the view has the leader's id,
 * which only the environment has. Users can forge that, so the view is opened with the user's rights. */
static int find_view(spank_t spank, const struct settings *settings, uid_t uid)
{
	char job[32];
	uint32_t id;

	if (spank_get_item(spank, S_JOB_ID, &id) == ESPANK_SUCCESS) {
		snprintf(job, sizeof(job), "%u", id);
		if (read_view(settings, job, uid) == 0)
			return 0;
	}
	if (spank_getenv(spank, "SLURM_JOB_ID", job, sizeof(job)) != ESPANK_SUCCESS) {
		errno = ENOENT;
		return -1;
	}
	return read_view(settings, job, uid);
}

static int show_one(int run, const struct shown *shown, const struct owner *owner)
{
	return shown->is_roots ? show_as_root(run, shown) : show_with_rights(run, shown, owner);
}

/* In a namespace of the task's own. */
static void show_all(spank_t spank, const struct settings *settings, uid_t uid)
{
	struct owner owner = {.uid = uid};
	struct shown shown;
	char *rest;
	int groups = 0, run, result;

	if (spank_get_item(spank, S_JOB_GID, &owner.gid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &owner.groups, &groups) != ESPANK_SUCCESS) {
		slurm_info("warmstart: cannot tell the job's groups");
		return;
	}
	owner.count = groups > 0 ? (size_t)groups : 0;
	run = enter_run(settings, view.cache, uid);
	free(list);
	rest = list = run < 0 ? NULL : read_list(run);
	if (list == NULL)
		slurm_info("warmstart: cannot show what is in %s: %s", view.cache, strerror(errno));
	while (next_shown(&rest, &shown)) {
		result = show_one(run, &shown, &owner);
		if (result == 0 && strcmp(shown.target, view.constant) == 0)
			at_constant_path = true;
		if (result == ANOTHER && strcmp(shown.otherwise, NOTHING) != 0 &&
		    strlen(otherwise) + strlen(shown.otherwise) + 2 <= sizeof(otherwise))
			strcat(strcat(otherwise, shown.otherwise), "\n");
		if (result < 0)
			slurm_info("warmstart: cannot mount at %s: %s", shown.target, strerror(errno));
	}
	end_opener();
	if (run >= 0)
		close(run);
}

static int open_parent(const char *name)
{
	char parent[PATH_MAX];
	const char *end = strrchr(name, '/');

	if (end == NULL || snprintf(parent, sizeof(parent), "%.*s", (int)(end - name), name) >= (int)sizeof(parent))
		return -1;
	return open(parent, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments)
{
	struct settings settings = settings_of(count, arguments);
	uid_t uid;

	if (spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS || uid == 0)
		return 0;
	if (find_view(spank, &settings, uid) < 0) {
		if (errno != ENOENT)
			slurm_info("warmstart: cannot read the job's view: %s", strerror(errno));
		return 0;
	}
	if (verdict != NULL || view.text == NULL)
		return 0;
	if (look(AT_FDCWD, "/", &node_root) < 0 || look(AT_FDCWD, view.cache, &node_cache) < 0)
		node_root.st_ino = node_cache.st_ino = 0;
	node_run = open_parent(view.cache);
	at_constant_path = false;
	otherwise[0] = '\0';
	show_all(spank, &settings, uid);
	return 0;
}

static bool is_below(const char *value, const char *directory)
{
	size_t length = strlen(directory);

	return strncmp(value, directory, length) == 0 && (value[length] == '/' || value[length] == '\0');
}

/* Return whether a variable is as we have set it. To Apptainer's lists the user may have added; it starts nothing where
 * what it is to bind is missing. */
static bool is_ours(const char *name, const char *value, const char *ours)
{
	size_t length = ours == NULL ? 0 : strlen(ours);

	if (strncmp(name, "WARMSTART_", 10) == 0)
		return true;
	if (ours == NULL || strncmp(value, ours, length) != 0)
		return false;
	return value[length] == '\0' || (value[length] == ',' && strncmp(name, "APPTAINER_", 10) == 0);
}

/* Forget what other nodes of this job, and the job that this one was submitted from, have set: it is not the user's.
 * WARMSTART_OWN has it, between tabs: that job, its workspace, the constant path, and of each variable NAME, if it leads to
 * one of the two, or NAME=VALUE. Another job's are unset; of this job's, those that lead there: here they lead nowhere,
 * or are set anew. The others are put into `inherited`. The task prolog has the same rule. */
static void forget(spank_t spank)
{
	static char own[LONGEST], value[LONGEST];
	char job[32] = "", *rest, *from, *workspace, *constant, *name, *ours, *there;
	bool is_same, leads;

	inherited[0] = '\0';
	if (spank_getenv(spank, "WARMSTART_OWN", own, sizeof(own)) != ESPANK_SUCCESS)
		return;
	spank_getenv(spank, "SLURM_JOB_ID", job, sizeof(job));
	from = strtok_r(own, "\t", &rest);
	workspace = strtok_r(NULL, "\t", &rest);
	constant = strtok_r(NULL, "\t", &rest);
	is_same = from != NULL && strcmp(from, job) == 0;
	while (constant != NULL && (name = strtok_r(NULL, "\t", &rest)) != NULL) {
		ours = strchr(name, '=');
		if (ours != NULL)
			*ours++ = '\0';
		if (spank_getenv(spank, name, value, sizeof(value)) != ESPANK_SUCCESS)
			continue;
		leads = is_below(value, constant) || (is_below(value, workspace) && strcmp(value, workspace) != 0);
		if (!leads && !is_ours(name, value, ours))
			continue;
		there = strstr(value, workspace); /* Apptainer's begin with another word */
		if (leads || !is_same || (there != NULL && there[strlen(workspace)] == '/'))
			spank_unsetenv(spank, name);
		else
			strcat(strcat(inherited, "\t"), name);
	}
	if (!is_same)
		spank_unsetenv(spank, "WARMSTART_OWN");
}

/* Return whether a name is among those between tabs. */
static bool is_among(const char *names, const char *name)
{
	size_t length = strlen(name);

	for (; (names = strstr(names, name)) != NULL; names++)
		if (names[-1] == '\t' && (names[length] == '\t' || names[length] == '\0'))
			return true;
	return false;
}

/* Return whether a TMPDIR is here, or Slurm can make it: else it takes /tmp, as for a login's that is missing here. The
 * task prolog has the same rule. */
static bool is_usable(const char *directory)
{
	char parent[PATH_MAX + 2];
	struct stat found;
	const char *end = strrchr(directory, '/');

	if (stat(directory, &found) == 0)
		return S_ISDIR(found.st_mode);
	snprintf(parent, sizeof(parent), "%.*s/", end == NULL ? 0 : (int)(end - directory), directory);
	return faccessat(AT_FDCWD, parent, W_OK, AT_EACCESS) == 0;
}

/* Return whether the user set the variable. A value that points into a cache or workspace was inherited from another
 * job. One of Apptainer's may have its older name: of two Apptainer takes the newer one alone. */
static bool set_by_user(spank_t spank, const char *name)
{
	static const char newer[] = "APPTAINER_";
	char value[PATH_MAX], older[PATH_MAX];
	spank_err_t answer = spank_getenv(spank, name, value, sizeof(value));

	if (is_among(inherited, name))
		answer = ESPANK_ENV_NOEXIST;
	if ((answer == ESPANK_ENV_NOEXIST || (answer == ESPANK_SUCCESS && *value == '\0')) &&
	    strncmp(name, newer, strlen(newer)) == 0) {
		snprintf(older, sizeof(older), "SINGULARITY_%s", name + strlen(newer));
		answer = spank_getenv(spank, older, value, sizeof(value));
	}
	if (answer == ESPANK_NOSPACE)
		return true;
	if (answer != ESPANK_SUCCESS || *value == '\0' || (strcmp(name, "TMPDIR") == 0 && !is_usable(value)))
		return false;
	return (!is_below(value, view.workspace) || strcmp(value, view.workspace) == 0) && !is_below(value, view.constant);
}

static void set_variable(spank_t spank, const struct variable *variable)
{
	char moved[PATH_MAX];
	const char *value = variable->value;

	if (!variable->forced && set_by_user(spank, variable->name))
		return;
	if (!at_constant_path && is_below(value, view.constant)) {
		if (snprintf(moved, sizeof(moved), "%s%s", view.cache, value + strlen(view.constant)) >= (int)sizeof(moved))
			return;
		value = moved;
	}
	if (spank_setenv(spank, variable->name, value, 1) != ESPANK_SUCCESS)
		slurm_info("warmstart: cannot set %s", variable->name);
}

static bool same(const struct stat *one, const struct stat *other)
{
	return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

static bool is_in_container(void)
{
	struct stat root;

	return node_root.st_ino != 0 && look(AT_FDCWD, "/", &root) == 0 && !same(&root, &node_root);
}

/* Return whether a directory is a cache of the job's: the first one, or one of another image, RUN/caches/KEY/cache, which
 * may have been made for this container (docs/adr/0057). */
static bool is_cache(const struct stat *found)
{
	char name[NAME_MAX + sizeof("/cache")];
	bool is_found = same(found, &node_cache);
	int fd = is_found || node_run < 0 ? -1 : openat(node_run, "caches", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *others = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *other;
	struct stat cache;

	while (others != NULL && !is_found && (other = readdir(others)) != NULL) {
		snprintf(name, sizeof(name), "%s/cache", other->d_name);
		is_found = fstatat(fd, name, &cache, AT_SYMLINK_NOFOLLOW) == 0 && same(found, &cache);
	}
	if (others != NULL)
		closedir(others);
	else if (fd >= 0)
		close(fd);
	return is_found;
}

/* Put the path of what is beside the cache into `found`, PATH_MAX bytes. Return whether it has room. */
static bool beside_cache(char *found, const char *name)
{
	const char *end = strrchr(view.cache, '/');

	return end != NULL && snprintf(found, PATH_MAX, "%.*s/%s", (int)(end - view.cache), view.cache, name) < PATH_MAX;
}

/* Return whether this container has the job's TMPDIR. */
static bool has_tmp(void)
{
	char tmp[PATH_MAX];

	return beside_cache(tmp, "tmp") && access(tmp, F_OK) == 0;
}

/* Return whether a value is a path that leads nowhere in this container: the cache or TMPDIR is not there. */
static bool is_hidden(const char *value, bool has_cache)
{
	if (is_below(value, view.constant))
		return !has_cache;
	return is_below(value, view.workspace) && !has_tmp();
}

static bool is_task(spank_t spank, spank_item_t item)
{
	uint32_t task;

	return spank_get_item(spank, item, &task) == ESPANK_SUCCESS && task == 0;
}

static void say(const char *text)
{
	size_t left = strlen(text);
	ssize_t written;

	while (left > 0 && ((written = write(STDERR_FILENO, text, left)) >= 0 || errno == EINTR)) {
		text += written > 0 ? written : 0;
		left -= written > 0 ? (size_t)written : 0;
	}
}

/* enroot's hook has set the container's variables before pyxis made the user's mounts. Where one of these hides the
 * cache, unset what points into it: a tool would write into the user's directory, or fail. WARMSTART_CACHE becomes
 * empty, which means that there is no cache. */
static void check_container(spank_t spank)
{
	struct variable variable;
	struct stat found;
	char value[PATH_MAX], *line = view.variables;
	bool has_cache = stat(view.constant, &found) == 0 && is_cache(&found), hidden = false;

	while ((line = view_variable(line, &variable)) != NULL) {
		if (spank_getenv(spank, variable.name, value, sizeof(value)) != ESPANK_SUCCESS || !is_hidden(value, has_cache))
			continue;
		hidden = true;
		if (strcmp(variable.name, "WARMSTART_CACHE") == 0)
			spank_setenv(spank, variable.name, "", 1);
		else
			spank_unsetenv(spank, variable.name);
	}
	if (hidden && is_task(spank, S_TASK_ID))
		dprintf(STDERR_FILENO,
			"warmstart: this container lacks %s: one of its mounts hides it, or enroot's hook is not installed "
			"on this node; the step runs without it\n",
			has_cache ? "the job's TMPDIR" : "the job's cache");
}

/* Print the verdict and exit. Slurm ignores the status of an optional plugin (spank(8)); this process has yet to exec
 * the user's program, so its exit ends the task, as a failed task prolog would. */
static void end_task(void)
{
	say(verdict);
	_exit(EXIT_FAILURE);
}

/* Print the notice once for each step. Its variable names this job's notice before the task prolog runs: so that knows
 * that the notice is told. */
static void tell_notice(spank_t spank)
{
	spank_setenv(spank, "WARMSTART_NOTICES", path, 1);
	if (is_task(spank, S_TASK_GLOBAL_ID))
		say(notice);
}

/* Print the importer's note (images/user/own_images.py) of an image without caches: once for the job on this node, by
 * the task that makes its second name. */
static void tell_cold(void)
{
	char folder[PATH_MAX], text[2048];
	ssize_t length;
	int notes, file;

	if (!beside_cache(folder, "tmp/warmstart-images"))
		return;
	notes = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	file = notes < 0 ? -1 : openat(notes, ".cold", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	length = file < 0 ? 0 : read(file, text, sizeof(text) - 1);
	if (length > 0 && linkat(notes, ".cold", notes, ".cold-told", 0) == 0) {
		text[length] = '\0';
		say(text);
	}
	if (file >= 0)
		close(file);
	if (notes >= 0)
		close(notes);
}

/* Unset what enroot's hook has set in place of a cache, because a hook can unset nothing: in this container, or in the
 * one that this job was submitted from. The task prolog has the same rule. */
static void forget_places(spank_t spank)
{
	static char names[LONGEST];
	char *rest, *name;

	if (spank_getenv(spank, "WARMSTART_UNSET", names, sizeof(names)) != ESPANK_SUCCESS)
		return;
	for (name = strtok_r(names, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest))
		spank_unsetenv(spank, name);
	spank_unsetenv(spank, "WARMSTART_UNSET");
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
	struct variable variable;
	char *line = view.variables;

	(void)count;
	(void)arguments;
	if (verdict != NULL)
		end_task();
	forget_places(spank);
	if (notice != NULL)
		tell_notice(spank);
	if (line == NULL) {
		forget(spank);
		return 0;
	}
	if (is_in_container()) {
		check_container(spank);
		if (is_task(spank, S_TASK_GLOBAL_ID))
			tell_cold();
		view_free(&view);
		return 0;
	}
	if (is_task(spank, S_TASK_GLOBAL_ID))
		say(otherwise);
	forget(spank);
	while ((line = view_variable(line, &variable)) != NULL)
		set_variable(spank, &variable);
	view_free(&view);
	return 0;
}
