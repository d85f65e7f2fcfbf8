/* SPANK plugin: options for what a job wants of warmstart, and its cache at the constant path.
 *
 *   optional warmstart.so [state=DIR] [workspace=DIR] [cache=DIR]
 *
 * Whatever goes wrong here in a job's step is logged on the node and never fails the task: the job then finds its
 * cache at the path of its own. A verdict does fail it. Facts (spank(8), Slurm 22.05): options reach the prolog by
 * spank_job_control_setenv() from the submitting command; a mount namespace made in slurm_spank_init() kills
 * every step under job_container/tmpfs, one made in slurm_spank_task_init_privileged() works. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "warmstart.h"

#ifndef WARMSTART_STATE
#define WARMSTART_STATE "/var/lib/warmstart"
#endif

/* What Slurm looks up by name; all else is hidden. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(warmstart, 1)
#pragma GCC visibility pop

enum { IMAGE, PROFILES, KEEP, OFF };

static const char *const control[] = {"WARM_IMAGE", "WARM_PROFILE", "WARM_KEEP", "NO_WARM"};
static char *asked[4];

/* One task's, from slurm_spank_task_init_privileged() to slurm_spank_task_init(), which run in the same process. */
static struct view view;
static char *verdict;
static bool at_constant_path;

static int take(int which, const char *value, int remote)
{
	const char *problem = NULL;

	if (remote)
		return 0;
	if (which == IMAGE)
		problem = image_problem(value);
	else if (which == PROFILES)
		problem = profiles_problem(value);
	if (problem != NULL) {
		slurm_error("warmstart: the value of --%s %s; write %s", which == IMAGE ? "warm-image" : "warm-profile",
			    problem, which == IMAGE ? "REGISTRY/NAME:TAG" : "NAME or NAME,NAME");
		return -1;
	}
	free(asked[which]);
	asked[which] = strdup(which == KEEP || which == OFF ? "1" : value);
	return asked[which] == NULL ? -1 : 0;
}

static struct spank_option options[] = {
	{"warm-image", "REF", "warmstart: have this container image ready before the job starts", 1, IMAGE, take},
	{"warm-profile", "NAMES", "warmstart: seed these tools' caches, too (names with commas between)", 1, PROFILES, take},
	{"warm-keep", NULL, "warmstart: leave TMPDIR on the nodes for a while after the job, where the site allows it", 0, KEEP,
	 take},
	{"no-warm", NULL, "warmstart: prepare nothing for this job and bring nothing back", 0, OFF, take},
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
	for (size_t which = 0; which < sizeof(asked) / sizeof(*asked); which++) {
		if (asked[which] == NULL)
			continue;
		if (spank_job_control_setenv(spank, control[which], asked[which], 1) != ESPANK_SUCCESS) {
			slurm_error("warmstart: cannot hand --%s to the job", options[which].name);
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
	for (size_t which = 0; which < sizeof(asked) / sizeof(*asked); which++) {
		free(asked[which]);
		asked[which] = NULL;
	}
	view_free(&view);
	free(verdict);
	verdict = NULL;
	return 0;
}

static struct settings settings_of(int count, char **arguments)
{
	struct settings settings = {WARMSTART_STATE, "/var/tmp/warmstart", "/var/cache/warmstart"};

	for (int i = 0; i < count; i++) {
		if (strncmp(arguments[i], "state=", 6) == 0)
			settings.state = arguments[i] + 6;
		else if (strncmp(arguments[i], "workspace=", 10) == 0)
			settings.workspace = arguments[i] + 10;
		else if (strncmp(arguments[i], "cache=", 6) == 0)
			settings.cache = arguments[i] + 6;
		else
			slurm_info("warmstart: plugstack.conf: unknown argument %s", arguments[i]);
	}
	return settings;
}

/* This node's name in Slurm, as slurmd tells it to slurmstepd. The task's own environment may have another's, from
 * the step that started this one. */
static const char *node_name(void)
{
	const char *name = getenv("SLURMD_NODENAME");

	return name == NULL ? "" : name;
}

/* Read one view: the job has a verdict, or variables. */
static int read_view(const struct settings *settings, const char *job, uid_t uid)
{
	verdict = view_verdict(settings, node_name(), job, uid);
	return verdict != NULL ? 0 : view_read(settings, node_name(), job, uid, &view);
}

/* Read the view of the job, by the id that its tasks know: in a heterogeneous job that is the leader's, which
 * only the environment has. That is the user's to forge, and the view's owner is checked. */
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
	if (verdict != NULL)
		return 0;
	at_constant_path = bind_cache(&settings, node_name(), view.cache, uid) == 0;
	if (!at_constant_path)
		slurm_info("warmstart: no cache at %s: %s", settings.cache, strerror(errno));
	else
		at_constant_path = strcmp(view.constant, settings.cache) == 0;
	return 0;
}

static bool is_below(const char *value, const char *directory)
{
	size_t length = strlen(directory);

	return strncmp(value, directory, length) == 0 && (value[length] == '/' || value[length] == '\0');
}

static const char *const meeting[] = {"MASTER_ADDR", "MASTER_PORT"};

/* Tell whether MASTER_ADDR and MASTER_PORT are those of the job that this one was submitted from, as
 * WARMSTART_RENDEZVOUS=JOB:ADDRESS:PORT says then. The task prolog asks the same. */
static bool has_others_meeting(spank_t spank)
{
	char job[32], address[256], port[32], known[512], expected[512];

	if (spank_getenv(spank, meeting[0], address, sizeof(address)) != ESPANK_SUCCESS ||
	    spank_getenv(spank, meeting[1], port, sizeof(port)) != ESPANK_SUCCESS ||
	    spank_getenv(spank, "WARMSTART_RENDEZVOUS", known, sizeof(known)) != ESPANK_SUCCESS ||
	    spank_getenv(spank, "SLURM_JOB_ID", job, sizeof(job)) != ESPANK_SUCCESS)
		return false;
	snprintf(expected, sizeof(expected), "%s:%s", address, port);
	return strchr(known, ':') != NULL && strcmp(strchr(known, ':') + 1, expected) == 0 &&
	       (strncmp(known, job, strlen(job)) != 0 || known[strlen(job)] != ':');
}

/* What the user set stays, unless it points into a cache or workspace: then it was inherited from another job. */
static bool is_users(spank_t spank, const char *name)
{
	char value[PATH_MAX];
	spank_err_t answer = spank_getenv(spank, name, value, sizeof(value));

	if (answer == ESPANK_NOSPACE)
		return true;
	if (answer != ESPANK_SUCCESS || *value == '\0')
		return false;
	return (!is_below(value, view.workspace) || strcmp(value, view.workspace) == 0) && !is_below(value, view.constant);
}

static void set_variable(spank_t spank, const struct variable *variable)
{
	char moved[PATH_MAX];
	const char *value = variable->value;

	if (!variable->forced && is_users(spank, variable->name))
		return;
	if (!at_constant_path && is_below(value, view.constant)) {
		if (snprintf(moved, sizeof(moved), "%s%s", view.cache, value + strlen(view.constant)) >= (int)sizeof(moved))
			return;
		value = moved;
	}
	if (spank_setenv(spank, variable->name, value, 1) != ESPANK_SUCCESS)
		slurm_info("warmstart: cannot set %s", variable->name);
}

/* Slurm ignores what an optional plugin returns (spank(8)), so the task's process, which only waits to become the
 * user's program, says why and ends, as it does where the task prolog fails. */
static void end_task(void)
{
	size_t left = strlen(verdict);
	const char *text = verdict;
	ssize_t written;

	while (left > 0 && ((written = write(STDERR_FILENO, text, left)) >= 0 || errno == EINTR)) {
		text += written > 0 ? written : 0;
		left -= written > 0 ? (size_t)written : 0;
	}
	_exit(EXIT_FAILURE);
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
	struct variable variable;
	char *line = view.variables;

	(void)count;
	(void)arguments;
	if (verdict != NULL)
		end_task();
	if (line == NULL)
		return 0;
	if (has_others_meeting(spank)) {
		spank_unsetenv(spank, meeting[0]);
		spank_unsetenv(spank, meeting[1]);
	}
	while ((line = view_variable(line, &variable)) != NULL)
		set_variable(spank, &variable);
	view_free(&view);
	return 0;
}
