/* SPDX-License-Identifier: Apache-2.0
 * `mica` as a wheel installs it. The command itself lies inside the Python package, beside the library that it needs;
 * how far the package is from bin/ is decided when the wheel is installed. So: find the package, become the command. */
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COMMAND "mica/bin/mica"
/* Beside the package, and of this wheel's version: one bin/ may serve several Pythons. */
#define METADATA "mica_attention-" MICA_VERSION ".dist-info/METADATA"

/* From the folder of this file: virtual environments, prefixes, --user; then --target; then an unzipped wheel. */
static const char* const kPlaces[] = {"../lib*/python3*/*-packages/", "../local/lib*/python3*/*-packages/", "../",
                                      "../../"};

static int join(char out[PATH_MAX], const char* a, const char* b, const char* c) {
  return snprintf(out, PATH_MAX, "%s%s%s", a, b, c) < PATH_MAX;
}

/* A path in which glob sees no pattern. */
static void quote(char out[PATH_MAX], const char* path) {
  size_t n = 0;
  for (; *path && n < PATH_MAX - 2; ++path) {
    if (strchr("*?[]\\", *path)) out[n++] = '\\';
    out[n++] = *path;
  }
  out[n] = 0;
}

/* Executes the command found from `folder` (ends with a slash), if there is one; of several, that of this version. */
static void try_from(const char* folder, char** argv) {
  char quoted[PATH_MAX], pattern[PATH_MAX], metadata[PATH_MAX];
  quote(quoted, folder);
  for (size_t place = 0; place < sizeof kPlaces / sizeof *kPlaces; ++place) {
    glob_t found;
    if (!join(pattern, quoted, kPlaces[place], COMMAND) || glob(pattern, 0, NULL, &found) != 0) continue;
    for (int any_version = 0; any_version < 2; ++any_version)
      for (size_t i = 0; i < found.gl_pathc; ++i) {
        char* path = found.gl_pathv[i];
        const int root_length = (int)(strlen(path) - strlen(COMMAND));
        if (snprintf(metadata, PATH_MAX, "%.*s%s", root_length, path, METADATA) >= PATH_MAX) continue;
        if (!any_version && access(metadata, F_OK) != 0) continue;
        execv(path, argv);
        fprintf(stderr, "mica: %s cannot be run: %s\n", path, strerror(errno));
      }
    globfree(&found);
  }
}

/* Cuts the file's name off; 0 if the path has no folder. */
static int keep_folder(char* path) {
  char* slash = strrchr(path, '/');
  if (slash) slash[1] = 0;
  return slash != NULL;
}

int main(int argc, char** argv) {
  char here[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", here, sizeof here - 1);
  if (length > 0) {
    here[length] = 0;
    if (keep_folder(here)) try_from(here, argv);
  }
  /* Without /proc, or where bin/mica is a link into a store. */
  if (argc > 0 && join(here, argv[0], "", "") && keep_folder(here)) try_from(here, argv);
  fputs("mica: the Python package is not near this command; install mica-attention again\n", stderr);
  return 127;
}
