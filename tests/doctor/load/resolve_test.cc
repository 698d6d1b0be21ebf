// SPDX-License-Identifier: Apache-2.0
// The loader in the head against the loader itself: the same file, the same words.
#include "doctor/load/resolve.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "doctor/load/hwcaps.h"
#include "doctor/load/library_store.h"
#include "support/text.h"
#include "tests/doctor/fixtures.h"

namespace {

using fixtures::compile;
using fixtures::TempFolder;

constexpr const char* kLibrary = "-shared -fPIC -nostdlib ";

// A program that opens its argument as Python does; it stands for the interpreter.
struct World {
  TempFolder folder;
  std::string program = folder / "program";
  doctor::Environment target;

  World() {
    compile(program,
            "#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char** a) { for (int i = 1; i < n; ++i) { void* h "
            "= dlopen(a[i], RTLD_NOW); if (!h) { puts(dlerror()); return 0; } } puts(\"\"); return 0; }\n"
            "int PyLong_FromLong(void) { return 0; }",
            "-rdynamic -ldl");
    target.name = "the test";
    target.machine = fixtures::output_of("uname -m");
    target.python.emplace();
    target.python->executable = program;
    target.loader.default_folders = {
        support::folder_name(fixtures::output_of("ldd " + program + " | sed -n 's/.*=> \\(.*libc.so.6\\) .*/\\1/p'"))};
    target.libraries = doctor::disk_libraries();
  }

  // What will be said, and what is said; `before` are opened first, as torch would be.
  void expect_truth(const std::string& file, const std::string& want_part, const std::vector<std::string>& before = {},
                    const std::string& variables = "") {
    const doctor::ElfFile elf = doctor::read_elf_file(file);
    doctor::LoadRequest request;
    request.file = {file, &elf};
    target.torch.reset();
    if (!before.empty()) {
      target.torch.emplace();
      target.torch->libraries = before;
    }
    const doctor::Resolution predicted = doctor::resolve(request, target);
    std::string arguments;
    for (const std::string& path : before) arguments += " " + path;
    const std::string said = fixtures::output_of(variables + " " + program + arguments + " " + file);
    EXPECT_EQ(predicted.message, said);
    EXPECT_NE(said.find(want_part), std::string::npos) << said;
    EXPECT_EQ(want_part.empty(), predicted.failure == doctor::LoadFailure::kNone);
    if (want_part.empty()) {
      EXPECT_EQ(said, "");
    }
  }
};

World& world() {
  static World* one = new World;
  return *one;
}

TEST(Resolve, LoadsAndFindsItsNeeds) {
  const std::string at = world().folder / "ok";
  compile(at + "/libdep.so.1", "int dep(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libdep.so.1");
  compile(at + "/origin.so",
          "int dep(void); int PyLong_FromLong(void); int f(void) { return dep() + PyLong_FromLong(); }",
          std::string(kLibrary) + "libdep.so.1 -Wl,-rpath,'$ORIGIN'");
  world().expect_truth(at + "/origin.so", "");
  std::filesystem::create_directories(at + "/sub");
  compile(at + "/rpath.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "libdep.so.1 -Wl,-rpath,'${ORIGIN}/sub/..' -Wl,--disable-new-dtags");
  world().expect_truth(at + "/rpath.so", "");
  // Weak symbols may stay undefined.
  compile(at + "/weak.so", "void nowhere(void) __attribute__((weak)); void f(void) { if (nowhere) nowhere(); }",
          kLibrary);
  world().expect_truth(at + "/weak.so", "");
}

TEST(Resolve, NeededLibraryMissing) {
  const std::string at = world().folder / "missing";
  compile(at + "/libgone.so.12", "int gone(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libgone.so.12");
  compile(at + "/a.so", "int gone(void); int f(void) { return gone(); }", std::string(kLibrary) + "libgone.so.12");
  world().expect_truth(at + "/a.so", "libgone.so.12: cannot open shared object file: No such file or directory");
  // What is loaded already counts, wherever it lies.
  world().expect_truth(at + "/a.so", "", {at + "/libgone.so.12"});
  world().target.loader.library_path = {at};
  world().expect_truth(at + "/a.so", "", {}, "LD_LIBRARY_PATH=" + at);
  world().target.loader.library_path.clear();
  // A file of another machine in the way is passed over.
  std::string other = fixtures::read_file(at + "/libgone.so.12");
  other[18] = 8;
  fixtures::write_file(at + "/libgone.so.12", other);
  world().target.libraries = doctor::disk_libraries();
  world().target.loader.library_path = {at};
  world().expect_truth(at + "/a.so", "cannot open", {}, "LD_LIBRARY_PATH=" + at);
  world().target.loader.library_path.clear();
  world().expect_truth(at + "/libgone.so.12", "cannot open shared object file");
}

// One of 32 bits in the way is passed over, too, and named where no other is found.
TEST(Resolve, NeededLibraryOfTheOtherClass) {
  const std::string at = world().folder / "class";
  compile(at + "/good/libdep.so.1", "int dep(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libdep.so.1");
  compile(at + "/a.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "good/libdep.so.1 -Wl,-rpath,'$ORIGIN/first:$ORIGIN/good'");
  std::string other = fixtures::read_file(at + "/good/libdep.so.1");
  other[4] = 1;   // ELFCLASS32
  other[18] = 3;  // EM_386
  fixtures::write_file(at + "/first/libdep.so.1", other);
  world().target.libraries = doctor::disk_libraries();
  world().expect_truth(at + "/a.so", "");
  world().expect_truth(at + "/first/libdep.so.1", "/first/libdep.so.1: wrong ELF class: ELFCLASS32");
  std::filesystem::remove(at + "/good/libdep.so.1");
  world().target.libraries = doctor::disk_libraries();
  world().expect_truth(at + "/a.so", "libdep.so.1: wrong ELF class: ELFCLASS32");
}

// $ORIGIN is where the link lies, not the file: what lies beside the file is not found.
TEST(Resolve, OriginOfALibraryThatIsALink) {
  const std::string at = world().folder / "links";
  compile(at + "/store/libdep.so.1", "int dep(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libdep.so.1");
  compile(at + "/store/a.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "libdep.so.1 -Wl,-rpath,'$ORIGIN'");
  std::filesystem::create_directories(at + "/site");
  std::filesystem::create_symlink(at + "/store/a.so", at + "/site/a.so");
  world().target.libraries = doctor::disk_libraries();
  world().expect_truth(at + "/store/a.so", "");
  world().expect_truth(at + "/site/a.so", "libdep.so.1: cannot open shared object file: No such file or directory");
  std::filesystem::create_symlink(at + "/store/libdep.so.1", at + "/site/libdep.so.1");
  world().target.libraries = doctor::disk_libraries();
  world().expect_truth(at + "/site/a.so", "");
}

// The search ends at a file that is no library, even where a later folder has one.
TEST(Resolve, NeededLibraryIsNone) {
  const std::string at = world().folder / "damaged";
  compile(at + "/good/libdep.so.1", "int dep(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libdep.so.1");
  compile(at + "/a.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "good/libdep.so.1 -Wl,-rpath,'$ORIGIN/first:$ORIGIN/good'");
  world().expect_truth(at + "/a.so", "");
  std::filesystem::create_directories(at + "/first");
  for (const auto& [bytes, words] : {std::pair(std::string(), "/first/libdep.so.1: file too short"),
                                     {std::string("\177ELF\2\1\1"), "/first/libdep.so.1: file too short"},
                                     {std::string(200, 'x'), "/first/libdep.so.1: invalid ELF header"}}) {
    fixtures::write_file(at + "/first/libdep.so.1", bytes);
    world().target.libraries = doctor::disk_libraries();
    world().expect_truth(at + "/a.so", words);
  }
  std::filesystem::remove(at + "/first/libdep.so.1");
  std::filesystem::create_directories(at + "/first/libdep.so.1");
  world().target.libraries = doctor::disk_libraries();
  world().expect_truth(at + "/a.so", "/first/libdep.so.1: cannot read file data: Is a directory");
}

// The name of a needed library may hold $ORIGIN itself.
TEST(Resolve, OriginInTheNameOfALibrary) {
  const std::string at = world().folder / "named";
  compile(at + "/libdep.so", "int dep(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,'$ORIGIN/libdep.so'");
  compile(at + "/a.so", "int dep(void); int f(void) { return dep(); }", std::string(kLibrary) + "libdep.so");
  world().target.libraries = doctor::disk_libraries();
  world().expect_truth(at + "/a.so", "");
  std::filesystem::remove(at + "/libdep.so");
  world().target.libraries = doctor::disk_libraries();
  world().expect_truth(at + "/a.so", at + "/libdep.so: cannot open shared object file: No such file or directory");
}

TEST(Resolve, RunpathIsNotInherited) {
  const std::string at = world().folder / "inherit";
  compile(at + "/deep/libinner.so", "int inner(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libinner.so");
  compile(at + "/deep/libouter.so", "int inner(void); int outer(void) { return inner(); }",
          std::string(kLibrary) + "libinner.so -Wl,-soname,libouter.so");
  const std::string source = "int outer(void); int f(void) { return outer(); }";
  const std::string flags =
      std::string(kLibrary) + "deep/libouter.so -Wl,-rpath,'$ORIGIN/deep' -Wl,--allow-shlib-undefined ";
  compile(at + "/runpath.so", source, flags + "-Wl,--enable-new-dtags");
  world().expect_truth(at + "/runpath.so", "libinner.so: cannot open");
  compile(at + "/rpath.so", source, flags + "-Wl,--disable-new-dtags");
  world().expect_truth(at + "/rpath.so", "");
  // A RUNPATH without a folder, as `patchelf --set-rpath ''` leaves it, is one all the same.
  compile(at + "/deep/libouter.so", "int inner(void); int outer(void) { return inner(); }",
          std::string(kLibrary) + "libinner.so -Wl,-soname,libouter.so -Wl,--enable-new-dtags,-rpath,/nowhere");
  std::string emptied = fixtures::read_file(at + "/deep/libouter.so");
  emptied.replace(emptied.find("/nowhere"), 8, 8, '\0');
  fixtures::write_file(at + "/deep/libouter.so", emptied);
  world().target.libraries = doctor::disk_libraries();
  world().expect_truth(at + "/rpath.so", "libinner.so: cannot open");
}

// $LIB is a name that differs between distributions: both folders are there, the loader looks into one.
TEST(Resolve, LibInTheSearchPath) {
  const std::string at = world().folder / "lib_token", dep = "int dep(void) { return 1; }";
  const std::string soname = std::string(kLibrary) + "-Wl,-soname,libdep.so.1",
                    uses = "int dep(void); int f(void) { return dep(); }";
  const std::string own = fixtures::output_of("ldd " + world().program +
                                              " | sed -n 's/.*=> \\(\\/usr\\)*\\/\\(.*\\)\\/libc.so.6 .*/\\2/p'");
  compile(at + "/" + own + "/libdep.so.1", dep, soname);
  compile(at + "/a.so", uses, std::string(kLibrary) + own + "/libdep.so.1 -Wl,-rpath,'$ORIGIN/$LIB'");
  compile(at + "/b.so", uses, std::string(kLibrary) + own + "/libdep.so.1 -Wl,-rpath,'$ORIGIN/${LIB}x'");
  world().expect_truth(at + "/a.so", "");
  world().expect_truth(at + "/b.so", "libdep.so.1: cannot open");
}

// Linked with -z nodefaultlib: the folders of the system count for nothing, but for what is loaded already.
TEST(Resolve, SystemFoldersThatDoNotCount) {
  World& world = ::world();
  const std::string at = world.folder / "nodefaultlib";
  const std::string flags = "-shared -fPIC -nostdlib -Wl,--no-as-needed -lc ";
  const std::string folder = world.target.loader.default_folders[0];
  compile(at + "/a.so", "void f(void) {}", flags + folder + "/libutil.so.1");
  compile(at + "/b.so", "void f(void) {}", flags + folder + "/libutil.so.1 -Wl,-z,nodefaultlib");
  world.expect_truth(at + "/a.so", "");
  world.expect_truth(at + "/b.so", "libutil.so.1: cannot open");
  world.target.loader.cache = {{"libutil.so.1", folder + "/libutil.so.1"}};
  world.expect_truth(at + "/b.so", "libutil.so.1: cannot open");
  world.target.loader.cache.clear();
}

TEST(Resolve, VersionsMissing) {
  const std::string at = world().folder / "versions";
  const auto versioned = [&](const std::string& path, const std::string& script, const std::string& soname) {
    fixtures::write_file(at + "/s.map", script);
    compile(path, "int one(void) { return 1; } int two(void) { return 2; }",
            std::string(kLibrary) + "-Wl,--version-script=" + at + "/s.map -Wl,-soname," + soname);
  };
  versioned(at + "/libc.so.6", "GLIBC_9.99 { global: one; two; };", "libc.so.6");
  compile(at + "/glibc.so", "int one(void); int f(void) { return one(); }", std::string(kLibrary) + "libc.so.6");
  std::filesystem::remove(at + "/libc.so.6");
  world().expect_truth(at + "/glibc.so", "version `GLIBC_9.99' not found (required by " + at + "/glibc.so)");
  // The node is there, the symbol is not.
  versioned(at + "/libcudart.so.12", "libcudart.so.12 { global: one; two; local: *; };", "libcudart.so.12");
  compile(at + "/cuda.so", "int two(void); int f(void) { return two(); }",
          std::string(kLibrary) + "libcudart.so.12 -Wl,-rpath,'$ORIGIN'");
  world().expect_truth(at + "/cuda.so", "");
  versioned(at + "/libcudart.so.12", "libcudart.so.12 { global: one; local: *; };", "libcudart.so.12");
  world().target.libraries = doctor::disk_libraries();
  world().expect_truth(at + "/cuda.so", "undefined symbol: two, version libcudart.so.12");
}

// Who asks for no version gets the default one, or else the first of the library, even where that is kept for old
// programs.
TEST(Resolve, VersionsThatNobodyAskedFor) {
  const std::string at = world().folder / "unversioned";
  compile(at + "/libdep.so.1", "int old(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libdep.so.1");
  compile(at + "/a.so", "int old(void); int f(void) { return old(); }",
          std::string(kLibrary) + "libdep.so.1 -Wl,-rpath,'$ORIGIN'");
  for (const std::string version : {"ODD_1", "ODD_2"}) {
    fixtures::write_file(at + "/s.map", "ODD_1 { global: one; }; ODD_2 { global: two; } ODD_1;");
    compile(at + "/libdep.so.1",
            "int one(void) { return 1; } int two(void) { return 2; } int inner(void) { return 3; }\n"
            "__asm__(\".symver inner,old@" +
                version + "\");",
            std::string(kLibrary) + "-Wl,-soname,libdep.so.1 -Wl,--version-script=" + at + "/s.map");
    world().target.libraries = doctor::disk_libraries();
    world().expect_truth(at + "/a.so", version == "ODD_1" ? "" : "undefined symbol: old");
  }
}

// A library that lost its versions serves if it has a table of them, for those that it asks of others. Without that
// table glibc before 2.41 ends the process, and any glibc does where the library is not among those that are needed.
TEST(Resolve, VersionsThatEndTheProcess) {
  World& world = ::world();
  world.target.libc_version = support::parse_version(fixtures::output_of("getconf GNU_LIBC_VERSION | cut -d' ' -f2"));
  const std::string at = world.folder / "stops", library = at + "/libdep.so.1", source = "int dep(void) { return 1; }";
  const std::string flags = "-shared -fPIC -Wl,-soname,libdep.so.1 ";
  fixtures::write_file(at + "/s.map", "DEP_1 { global: dep; };");
  compile(library, source, flags + "-nostdlib -Wl,--version-script=" + at + "/s.map");
  compile(at + "/a.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "libdep.so.1 -Wl,-rpath,'$ORIGIN'");
  const auto ends = [&](const std::string& file) {
    return fixtures::output_of(world.program + " " + file + " 2>&1 | grep 'Inconsistency detected' | wc -l") == "1";
  };
  const auto predicted = [&](const std::string& file) {
    world.target.torch.reset();
    world.target.libraries = doctor::disk_libraries();
    const doctor::ElfFile elf = doctor::read_elf_file(file);
    return doctor::resolve({.file = {file, &elf}}, world.target).failure;
  };
  EXPECT_EQ(predicted(at + "/a.so"), doctor::LoadFailure::kNone);
  EXPECT_FALSE(ends(at + "/a.so"));
  // Its DT_NEEDED made a DT_DEBUG, which says nothing in a library.
  std::string edited = fixtures::read_file(at + "/a.so");
  const doctor::ElfFile whole = doctor::read_elf_file(at + "/a.so");
  for (const doctor::ElfSection& section : whole.sections)
    if (section.name == ".dynamic") edited[section.offset] = 21;
  fixtures::write_file(at + "/edited.so", edited);
  EXPECT_EQ(doctor::read_elf_file(at + "/edited.so").needed.size(), 0u);
  EXPECT_EQ(predicted(at + "/edited.so"), doctor::LoadFailure::kLoaderStops);
  EXPECT_TRUE(ends(at + "/edited.so"));

  compile(library, "#include <stdio.h>\nint dep(void) { return puts(\"\"); }", flags);
  EXPECT_EQ(predicted(at + "/a.so"), doctor::LoadFailure::kNone);
  EXPECT_FALSE(ends(at + "/a.so"));
  compile(library, source, flags + "-nostdlib");
  EXPECT_EQ(predicted(at + "/a.so") == doctor::LoadFailure::kLoaderStops, ends(at + "/a.so"));
  EXPECT_EQ(ends(at + "/a.so"), world.target.libc_version < support::parse_version("2.41"));
  world.target.libc_version = {};
}

TEST(Resolve, UndefinedSymbolsInTheLoadersOrder) {
  const std::string at = world().folder / "symbols";
  compile(at + "/order.so",
          "extern int late_data; int first_call(void); int second_call(void); int* p = &late_data; int f(void) { "
          "return first_call() + second_call(); }",
          kLibrary);
  world().expect_truth(at + "/order.so", "undefined symbol: late_data");
  compile(at + "/calls.so",
          "int first_call(void); int second_call(void); int f(void) { return first_call() + second_call(); }",
          kLibrary);
  world().expect_truth(at + "/calls.so", "undefined symbol: ");
  // Dependencies are bound first.
  compile(at + "/libbad.so", "int nowhere_a(void); int bad(void) { return nowhere_a(); }",
          std::string(kLibrary) + "-Wl,-soname,libbad.so");
  compile(at + "/top.so", "int bad(void); int nowhere_b(void); int f(void) { return bad() + nowhere_b(); }",
          std::string(kLibrary) + "libbad.so -Wl,-rpath,'$ORIGIN'");
  world().expect_truth(at + "/top.so", "libbad.so: undefined symbol: nowhere_a");
  // A library that was opened before is loaded, but its symbols are not for everyone.
  compile(at + "/libtorch_side.so", "int side(void) { return 1; }",
          std::string(kLibrary) + "-Wl,-soname,libtorch_side.so");
  compile(at + "/lonely.so", "int side(void); int f(void) { return side(); }", kLibrary);
  world().expect_truth(at + "/lonely.so", "undefined symbol: side", {at + "/libtorch_side.so"});
  compile(at + "/linked.so", "int side(void); int f(void) { return side(); }",
          std::string(kLibrary) + "libtorch_side.so");
  world().expect_truth(at + "/linked.so", "", {at + "/libtorch_side.so"});
  compile(at + "/object.so", "int f(void) { return 1; }", "-c -fPIC");
  world().expect_truth(at + "/object.so", "only ET_DYN and ET_EXEC can be loaded");
}

TEST(Resolve, FilesOfOneWheelSeeEachOther) {
  const std::string at = world().folder / "wheel";
  compile(at + "/build/pkg.libs/libdep.so", "int dep(void) { return 1; }",
          std::string(kLibrary) + "-Wl,-soname,libdep.so");
  compile(at + "/build/pkg/mod.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "../pkg.libs/libdep.so -Wl,-rpath,'$ORIGIN/../pkg.libs'");
  const doctor::ElfFile module = doctor::read_elf_file(at + "/build/pkg/mod.so"),
                        library = doctor::read_elf_file(at + "/build/pkg.libs/libdep.so");
  doctor::LoadRequest request;
  request.file = {"/site/pkg/mod.so", &module};
  world().target.torch.reset();
  EXPECT_EQ(doctor::resolve(request, world().target).failure, doctor::LoadFailure::kNeededMissing);
  request.beside = {{"/site/pkg/mod.so", &module}, {"/site/pkg.libs/libdep.so", &library}};
  EXPECT_EQ(doctor::resolve(request, world().target).message, "");
}

TEST(Libraries, LinksStayInsideTheRoot) {
  TempFolder root;
  compile(root / "usr/lib/libreal.so.1", "int f(void) { return 1; }", kLibrary);
  std::filesystem::create_symlink("/usr/lib/libreal.so.1", root / "usr/lib/libabsolute.so");
  std::filesystem::create_symlink("libreal.so.1", root / "usr/lib/librelative.so");
  std::filesystem::create_symlink("../../../../../../../../usr/lib/libreal.so.1", root / "usr/lib/libup.so");
  std::filesystem::create_symlink("libloop.so", root / "usr/lib/libloop.so");
  std::filesystem::create_symlink("usr/lib", root / "lib");
  const auto store = doctor::disk_libraries(root.path());
  for (const char* path :
       {"/usr/lib/libabsolute.so", "/lib/librelative.so", "/usr/lib/libup.so", "/lib/../lib/./libreal.so.1"}) {
    EXPECT_EQ(store->canonical(path), "/usr/lib/libreal.so.1") << path;
    EXPECT_TRUE(store->find(path)) << path;
  }
  EXPECT_FALSE(store->find("/usr/lib/libloop.so"));
  EXPECT_FALSE(store->find("/usr/lib"));
  EXPECT_FALSE(store->find("/nowhere"));
}

TEST(Resolve, ProgramsAreNotOpened) {
  World& world = ::world();
  const std::string pie = world.folder / "pie", fixed = world.folder / "fixed";
  compile(pie, "int main(void) { return 0; }", "-fPIE -pie");
  world.expect_truth(pie, "cannot dynamically load position-independent executable");
  compile(fixed, "int main(void) { return 0; }", "-no-pie");
  world.expect_truth(fixed, "cannot dynamically load executable");
  // A library that can be started too has an interpreter, and is opened all the same.
  const std::string both = world.folder / "libboth.so";
  compile(both,
          "const char interpreter[] __attribute__((section(\".interp\"))) = \"/lib64/ld-linux-x86-64.so.2\";\n"
          "int f(void) { return 0; }",
          kLibrary);
  world.expect_truth(both, "");
}

// What is needed must be a library, too.
TEST(Resolve, NeededLibraryIsAProgram) {
  World& world = ::world();
  const std::string at = world.folder / "kinds";
  compile(at + "/libdep.so.1", "int dep(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libdep.so.1");
  compile(at + "/a.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "libdep.so.1 -Wl,-rpath,'$ORIGIN'");
  const std::string program = "int main(void) { return 0; }";
  for (const auto& [flags, words] :
       {std::pair("-fPIE -pie", "libdep.so.1: cannot dynamically load position-independent executable"),
        {"-no-pie", "libdep.so.1: cannot dynamically load executable"},
        {"-c", "/libdep.so.1: only ET_DYN and ET_EXEC can be loaded"}}) {
    compile(at + "/libdep.so.1", program, flags);
    world.target.libraries = doctor::disk_libraries();
    world.expect_truth(at + "/a.so", words);
  }
}

// -z nodlopen: fine in what is loaded with the program, by LD_PRELOAD too, and refused later.
TEST(Resolve, LibrariesThatAreNotOpenedLater) {
  World& world = ::world();
  const std::string at = world.folder / "nodlopen";
  compile(at + "/libdep.so.1", "int dep(void) { return 1; }",
          std::string(kLibrary) + "-Wl,-soname,libdep.so.1 -Wl,-z,nodlopen");
  compile(at + "/a.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "libdep.so.1 -Wl,-rpath,'$ORIGIN'");
  world.target.libraries = doctor::disk_libraries();
  world.expect_truth(at + "/libdep.so.1", at + "/libdep.so.1: shared object cannot be dlopen()ed");
  world.expect_truth(at + "/a.so", "libdep.so.1: shared object cannot be dlopen()ed");
  world.target.loader.preload = {at + "/libdep.so.1"};
  world.expect_truth(at + "/a.so", "", {}, "LD_PRELOAD=" + at + "/libdep.so.1");
  world.target.loader.preload.clear();
}

// Parts that would have to begin in the middle of a page.
TEST(Resolve, LaidOutForOtherPages) {
  World& world = ::world();
  const std::string at = world.folder / "pages", source = "int x = 5; int f(void) { return x; }";
  world.target.page_bytes = std::stoul(fixtures::output_of("getconf PAGESIZE"));
  world.target.libc_version = support::parse_version(fixtures::output_of("getconf GNU_LIBC_VERSION | cut -d' ' -f2"));
  const auto linked = [&](const std::string& name, const std::string& flags) {
    compile(at + "/" + name, source, kLibrary + flags);
    return at + "/" + name;
  };
  world.expect_truth(linked("small.so", "-Wl,-z,max-page-size=512 -Wl,-z,common-page-size=512"),
                     at + "/small.so: ELF load command");
  world.expect_truth(linked("large.so", "-Wl,-z,max-page-size=65536"), "");
  world.target.page_bytes = 0;
  world.target.libc_version = {};
}

// Thread-local data of the initial-exec model has its place in a block with little room for what is opened later.
TEST(Resolve, ThreadLocalDataThatHasNoPlace) {
  World& world = ::world();
  const std::string at = world.folder / "threads", full = ": cannot allocate memory in static TLS block";
  const auto library = [&](const std::string& name, const std::string& data, const std::string& model) {
    const std::string path = at + "/" + name + ".so";
    compile(path, "__thread char " + data + "; char* get_" + name + "(void) { return " + name + "; }",
            std::string(kLibrary) + "-ftls-model=" + model);
    return path;
  };
  world.target.libraries = doctor::disk_libraries();
  const std::string small = library("small", "small[1200]", "initial-exec");
  world.expect_truth(small, "");
  const std::string large = library("large", "large[4000]", "initial-exec");
  world.expect_truth(large, large + full);
  world.expect_truth(library("elsewhere", "elsewhere[4000]", "global-dynamic"), "");
  const std::string wide = library("wide", "wide[8] __attribute__((aligned(256)))", "initial-exec");
  world.expect_truth(wide, wide + full);
  // Two that fit alone do not fit together; what is preloaded has its place before the program begins.
  const std::string second = library("second", "second[1200]", "initial-exec");
  world.expect_truth(second, second + full, {small});
  world.target.loader.tunables = "glibc.rtld.optional_static_tls=5000";
  world.expect_truth(large, "", {}, "GLIBC_TUNABLES=" + world.target.loader.tunables);
  world.target.loader.tunables.clear();
  world.target.loader.preload = {large};
  world.expect_truth(large, "", {}, "LD_PRELOAD=" + large);
  world.target.loader.preload.clear();
  // The data of the library that defines the symbol counts, not of the one that asks.
  const std::string asks = at + "/asks.so";
  compile(asks, "extern __thread char elsewhere[]; char* f(void) { return elsewhere; }",
          std::string(kLibrary) + "-ftls-model=initial-exec " + at + "/elsewhere.so");
  world.expect_truth(asks, at + "/elsewhere.so" + full);
}

// A header that names FreeBSD ends the search; GNU's own mark is as good as none.
TEST(Resolve, MarkedForAnotherSystem) {
  World& world = ::world();
  const std::string at = world.folder / "system";
  compile(at + "/good/libdep.so.1", "int dep(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libdep.so.1");
  compile(at + "/a.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "good/libdep.so.1 -Wl,-rpath,'$ORIGIN/first:$ORIGIN/good'");
  const std::string first = at + "/first/libdep.so.1", good = fixtures::read_file(at + "/good/libdep.so.1");
  const auto mark = [&](char os_abi, char abi_version) {
    std::string marked = good;
    marked[7] = os_abi;
    marked[8] = abi_version;
    fixtures::write_file(first, marked);
    world.target.libraries = doctor::disk_libraries();
  };
  for (const char os_abi : {9, 1, 127}) {
    mark(os_abi, 0);
    world.expect_truth(at + "/a.so", first + ": ELF file OS ABI invalid");
    world.expect_truth(first, first + ": ELF file OS ABI invalid");
  }
  mark(0, 1);
  world.expect_truth(at + "/a.so", first + ": ELF file ABI version invalid");
  mark(3, 0);
  world.expect_truth(at + "/a.so", "");
}

// Copies for newer CPUs come first in every folder, as far as the CPU has what they are named for.
TEST(Resolve, CopiesForNewerProcessors) {
  World& world = ::world();
  world.target.loader.hwcaps = doctor::hwcaps_of(world.target.machine, fixtures::output_of("cat /proc/cpuinfo"));
  world.target.libc_version = support::parse_version(fixtures::output_of("getconf GNU_LIBC_VERSION | cut -d' ' -f2"));
  if (world.target.loader.hwcaps.empty() || world.target.libc_version < support::Version{{2, 33}})
    GTEST_SKIP() << "the loader here knows no glibc-hwcaps of this CPU";
  const std::string at = world.folder / "hwcaps", level = at + "/glibc-hwcaps/" + world.target.loader.hwcaps[0];
  const std::string dep = std::string(kLibrary) + "-Wl,-soname,libdep.so.1";
  compile(at + "/glibc-hwcaps/x86-64-v99/libdep.so.1", "int dep(void) { return 1; }", dep);
  compile(at + "/a.so", "int dep(void); int f(void) { return dep(); }",
          std::string(kLibrary) + "glibc-hwcaps/x86-64-v99/libdep.so.1 -Wl,-rpath,'$ORIGIN'");
  const auto look_again = [&] { world.target.libraries = doctor::disk_libraries(); };
  look_again();
  world.expect_truth(at + "/a.so", "libdep.so.1: cannot open shared object file");
  compile(level + "/libdep.so.1", "int dep(void) { return 1; }", dep);
  look_again();
  world.expect_truth(at + "/a.so", "");
  // One beside it is passed over, even where it would be the better one.
  std::filesystem::rename(level + "/libdep.so.1", at + "/libdep.so.1");
  compile(level + "/libdep.so.1", "int other(void) { return 1; }", dep);
  look_again();
  world.expect_truth(at + "/a.so", at + "/a.so: undefined symbol: dep");
  world.target.loader.hwcaps.clear();
  world.target.libc_version = {};
}

uint32_t version_hash(std::string_view name) {
  uint32_t hash = 0;
  for (const char c : name) {
    hash = (hash << 4) + uint8_t(c);
    const uint32_t high = hash & 0xf0000000;
    hash = (hash ^ (high >> 24)) & ~high;
  }
  return hash;
}

// Packed relocations are marked by a version of libc; here the mark is renamed, and may be missing.
TEST(Resolve, PackedRelocationsWithoutTheirMark) {
  World& world = ::world();
  world.target.libc_version = support::parse_version(fixtures::output_of("getconf GNU_LIBC_VERSION | cut -d' ' -f2"));
  const std::string good = world.folder / "relr/good.so", bad = world.folder / "relr/bad.so";
  compile(good, "#include <stdio.h>\nstatic int x; int* at[8] = {&x, &x, &x}; void f(void) { puts(\"\"); }",
          "-shared -fPIC -Wl,-z,pack-relative-relocs");
  if (!doctor::read_elf_file(good).packed_relocations || world.target.libc_version < support::Version{{2, 36}})
    GTEST_SKIP() << "the linker or the loader here knows no packed relocations";
  world.expect_truth(good, "");
  std::string bytes = fixtures::read_file(good);
  const std::string name = "GLIBC_ABI_DT_RELR";
  const uint32_t hash = version_hash(name);
  const std::size_t entry = bytes.find(std::string(reinterpret_cast<const char*>(&hash), 4)), text = bytes.find(name);
  ASSERT_TRUE(entry != bytes.npos && text != bytes.npos);
  bytes[entry + 4] = 2;  // VER_FLG_WEAK
  bytes[text] = 'g';
  fixtures::write_file(bad, bytes);
  world.expect_truth(bad, bad + ": DT_RELR without GLIBC_ABI_DT_RELR dependency");
  world.target.libc_version = {};
}

TEST(Resolve, EachFileOfASessionIsTheOnlyOne) {
  World& world = ::world();
  const std::string first = world.folder / "libfirst.so", second = world.folder / "libsecond.so";
  compile(first, "int from_first(void) { return 1; }", std::string(kLibrary) + "-Wl,-soname,libfirst.so");
  compile(second, "int from_first(void); int f(void) { return from_first(); }", kLibrary);
  const doctor::ElfFile one = doctor::read_elf_file(first), two = doctor::read_elf_file(second);
  world.target.torch.reset();
  doctor::LoadSession session(world.target, {});
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(session.open({first, &one}).message, "");
    EXPECT_EQ(session.open({second, &two}).message, second + ": undefined symbol: from_first");
  }
}

}  // namespace
