/* Runs the plugin without Slurm: what spank.h promises is answered from here. Tests read what it prints.
 *
 *   harness submit OPTION[=VALUE]...       as sbatch would; prints the job control environment
 *   harness task UID JOB ARGUMENT...       as slurmstepd would, with the plugin's arguments; the task's
 *                                          environment is this process's own; prints what it then is, the
 *                                          mounts at cache= and below, and what the file `marker` in WARMSTART_CACHE holds.
 *                                          In between it enters the container at CONTAINER, as pyxis would. RANK is
 *                                          the task's number in the step, by default 0. Of TREE it prints the
 *                                          mounts and its `marker`
 *   harness serve                          does one of these in a child of its own for each message from the socket at
 *                                          its stdin, which holds strings: the arguments, an empty one, and the child's
 *                                          environment. It answers with the child's status, as wait(2) has it
 */
#define _GNU_SOURCE
#include <slurm/spank.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct spank_option *registered[8];
static size_t count;
static spank_context_t context;
static uid_t job_uid;
static uint32_t job_id;
static gid_t groups[] = {64299}; /* supplementary */

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank;
	registered[count++] = option;
	return ESPANK_SUCCESS;
}

spank_context_t spank_context(void)
{
	return context;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	(void)overwrite;
	printf("SPANK_%s=%s\n", name, value);
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	va_list arguments;

	(void)spank;
	va_start(arguments, item);
	if (item == S_JOB_UID)
		*va_arg(arguments, uid_t *) = job_uid;
	else if (item == S_JOB_ID)
		*va_arg(arguments, uint32_t *) = job_id;
	else if (item == S_TASK_ID)
		*va_arg(arguments, uint32_t *) = 0;
	else if (item == S_TASK_GLOBAL_ID)
		*va_arg(arguments, uint32_t *) = getenv("RANK") == NULL ? 0 : (uint32_t)strtoul(getenv("RANK"), NULL, 10);
	else if (item == S_JOB_GID)
		*va_arg(arguments, gid_t *) = (gid_t)job_uid;
	else if (item == S_JOB_SUPPLEMENTARY_GIDS) {
		*va_arg(arguments, gid_t **) = groups;
		*va_arg(arguments, int *) = 1;
	}
	va_end(arguments);
	return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *buffer, int length)
{
	const char *value = getenv(name);

	(void)spank;
	if (value == NULL)
		return ESPANK_ENV_NOEXIST;
	return snprintf(buffer, (size_t)length, "%s", value) >= length ? ESPANK_NOSPACE : ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	return setenv(name, value, overwrite) == 0 ? ESPANK_SUCCESS : ESPANK_ERROR;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
	(void)spank;
	return unsetenv(name) == 0 ? ESPANK_SUCCESS : ESPANK_ERROR;
}

static void say(const char *level, const char *format, va_list arguments)
{
	printf("%s: ", level);
	vprintf(format, arguments);
	printf("\n");
}

void slurm_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say("error", format, arguments);
	va_end(arguments);
}

void slurm_info(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say("info", format, arguments);
	va_end(arguments);
}

static int submit(int argc, char **argv)
{
	char *value;
	int refused = 0;

	context = S_CTX_ALLOCATOR;
	slurm_spank_init(NULL, 0, NULL);
	for (int i = 0; i < argc; i++) {
		value = strchr(argv[i], '=');
		if (value != NULL)
			*value++ = '\0';
		for (size_t n = 0; n < count; n++)
			if (strcmp(registered[n]->name, argv[i]) == 0)
				refused |= registered[n]->cb(registered[n]->val, value, 0);
	}
	if (!refused)
		refused = slurm_spank_init_post_opt(NULL, 0, NULL);
	slurm_spank_exit(NULL, 0, NULL);
	return refused ? 1 : 0;
}

static void print_lines(const char *path, const char *with)
{
	char line[8192];
	FILE *file = fopen(path, "r");

	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		if (strstr(line, with) != NULL)
			printf("%s: %s", path, line);
	if (file != NULL)
		fclose(file);
}

static int task(int argc, char **argv)
{
	const char *cache = "", *job_cache, *container = getenv("CONTAINER");
	char marker[8192], mounted[8192];

	context = S_CTX_REMOTE;
	job_uid = (uid_t)strtoul(argv[0], NULL, 10);
	job_id = (uint32_t)strtoul(argv[1], NULL, 10);
	if (strncmp(argv[argc - 1], "cache=", 6) == 0) /* the harness's own: the constant path */
		cache = argv[--argc] + 6;
	slurm_spank_init(NULL, argc - 2, argv + 2);
	slurm_spank_init_post_opt(NULL, argc - 2, argv + 2);
	slurm_spank_task_init_privileged(NULL, argc - 2, argv + 2);
	if (getenv("AS_ROOT_ALONE") != NULL)
		return 0;
	if (container != NULL && (chroot(container) != 0 || chdir("/") != 0))
		return 2;
	if (setresgid(job_uid, job_uid, job_uid) != 0 || setresuid(job_uid, job_uid, job_uid) != 0)
		return 2;
	slurm_spank_task_init(NULL, argc - 2, argv + 2);
	slurm_spank_exit(NULL, argc - 2, argv + 2);
	for (char **variable = environ; *variable != NULL; variable++)
		printf("%s\n", *variable);
	snprintf(mounted, sizeof(mounted), " %s", cache);
	print_lines("/proc/self/mountinfo", mounted);
	job_cache = getenv("WARMSTART_CACHE");
	snprintf(marker, sizeof(marker), "%s/marker", job_cache == NULL ? "" : job_cache);
	print_lines(marker, "");
	if (getenv("TREE") != NULL) {
		snprintf(mounted, sizeof(mounted), " %s ", getenv("TREE"));
		print_lines("/proc/self/mountinfo", mounted);
		snprintf(marker, sizeof(marker), "%s/marker", getenv("TREE"));
		print_lines(marker, "");
	}
	return 0;
}

static int run(int argc, char **argv)
{
	if (argc > 0 && strcmp(argv[0], "submit") == 0)
		return submit(argc - 1, argv + 1);
	if (argc > 2 && strcmp(argv[0], "task") == 0)
		return task(argc - 1, argv + 1);
	return 2;
}

static int run_message(char *message, char *end)
{
	static char *strings[1 << 16];
	int argc = 0;
	char **string = strings;

	for (; message < end; message += strlen(message) + 1)
		*string++ = message;
	while (strings[argc][0] != '\0')
		argc++;
	environ = strings + argc + 1;
	return run(argc, strings);
}

static int serve(void)
{
	static char message[1 << 16];
	ssize_t size;
	pid_t child;
	int status;

	while ((size = recv(STDIN_FILENO, message, sizeof(message), 0)) > 0) {
		child = fork();
		if (child == 0)
			return run_message(message, message + size);
		if (child < 0 || waitpid(child, &status, 0) != child || send(STDIN_FILENO, &status, sizeof(status), 0) < 0)
			return 2;
	}
	return size < 0 ? 2 : 0;
}

int main(int argc, char **argv)
{
	return argc == 2 && strcmp(argv[1], "serve") == 0 ? serve() : run(argc - 1, argv + 1);
}
