/* Validate --warm-image, --warm-profile and --warm-cache at submission, with the characters and lengths that the prolog accepts
 * (request.py). The prolog parses the values again, because users can forge what reaches it (slurm.conf(5), SPANK). No
 * shell sees them. */
#include <string.h>

#include "warmstart.h"

#define LONGEST 512
#define LONGEST_NAME 64
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"

static const char *problem(const char *value, const char *characters)
{
	if (value == NULL || *value == '\0')
		return "needs a value";
	if (strlen(value) > LONGEST)
		return "is longer than 512 characters";
	if (strspn(value, characters) != strlen(value))
		return "contains an invalid character";
	return NULL;
}

const char *image_problem(const char *value)
{
	const char *found = problem(value, LETTERS DIGITS "._:/@#+-");

	if (found == NULL && strchr(LETTERS DIGITS, *value) == NULL)
		return "does not start with a letter or a digit";
	return found;
}

const char *profiles_problem(const char *value)
{
	const char *found = problem(value, LETTERS DIGITS "_-,");

	if (found == NULL && (*value == ',' || value[strlen(value) - 1] == ',' || strstr(value, ",,") != NULL))
		return "contains an empty name";
	return found;
}

const char *name_problem(const char *value)
{
	const char *found = problem(value, LETTERS DIGITS "._-");

	if (found == NULL && strlen(value) > LONGEST_NAME)
		return "is longer than 64 characters";
	return found;
}
