/* Values of --warm-image and --warm-profile: the same characters and lengths that the prolog takes (request.py),
 * told at submission. A value that passes here reaches no shell, and is parsed again by the prolog: what arrives
 * there, anybody can forge (slurm.conf(5), SPANK). */
#include <string.h>

#include "warmstart.h"

#define LONGEST 512
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"

static const char *problem(const char *value, const char *characters)
{
	if (value == NULL || *value == '\0')
		return "needs a value";
	if (strlen(value) > LONGEST)
		return "is longer than 512 characters";
	if (strspn(value, characters) != strlen(value))
		return "holds a character that it may not hold";
	return NULL;
}

const char *image_problem(const char *value)
{
	const char *found = problem(value, LETTERS DIGITS "._:/@#+-");

	if (found == NULL && strchr(LETTERS DIGITS, *value) == NULL)
		return "does not begin with a letter or a digit";
	return found;
}

const char *profiles_problem(const char *value)
{
	const char *found = problem(value, LETTERS DIGITS "_-,");

	if (found == NULL && (*value == ',' || value[strlen(value) - 1] == ',' || strstr(value, ",,") != NULL))
		return "has an empty name in its list";
	return found;
}
