// SPDX-License-Identifier: Apache-2.0
// Kernels on systems that the test makes: who sees them, which Python they start, and everything that can be wrong.
#include "jupyter/kernels.h"

#include <gtest/gtest.h>

#include "support/quote.h"
#include "tests/doctor/fake_system.h"
#include "tests/verdict_notes.h"

namespace jupyter {
namespace {

std::string kernel_json(const std::string& program, const std::string& more = "") {
  return "{\"argv\": [\"" + program +
         "\", \"-m\", \"ipykernel_launcher\", \"-f\", \"{connection_file}\"], \"display_name\": \"A kernel\", "
         "\"language\": \"python\"" +
         more + "}";
}

class Jupyter : public testing::Test {
 protected:
  Jupyter() {
    system_.add_base();
    system_.add_python("/usr", "3.10.12");
    site_ = system_.add_virtual_environment("/home/user/venv", "/usr", "3.10.12");
    system_.write(site_ + "/ipykernel_launcher.py", "");
  }
  void add(const std::string& folder, const std::string& text) { system_.write(folder + "/kernel.json", text); }
  std::vector<Kernel> list() {
    doctor::Survey survey = doctor::survey(system_.outlook());
    return list_kernels(survey);
  }
  Kernel only() {
    const std::vector<Kernel> kernels = list();
    EXPECT_EQ(kernels.size(), 1u);
    return kernels.empty() ? Kernel{} : kernels[0];
  }
  static std::vector<std::string> codes(const Kernel& kernel) {
    std::vector<std::string> out;
    for (const doctor::Verdict& verdict : kernel.verdicts) out.push_back(verdict.code.text());
    return out;
  }
  using Codes = std::vector<std::string>;

  const std::string user_ = "/home/user/.local/share/jupyter/kernels/";
  FakeSystem system_;
  std::string site_;
};

TEST_F(Jupyter, AGoodKernelAndItsTorch) {
  system_.add_torch(site_, "2.8.0+cu128", "12.8", true);
  add(user_ + "Torch28", kernel_json("/home/user/venv/bin/python"));
  const Kernel kernel = only();
  EXPECT_EQ(kernel.name, "torch28");
  EXPECT_EQ(kernel.scope, "user");
  EXPECT_EQ(kernel.spec->display_name, "A kernel");
  EXPECT_EQ(kernel.program, "/home/user/venv/bin/python");
  ASSERT_TRUE(kernel.python);
  EXPECT_EQ(kernel.python->prefix, "/home/user/venv");
  EXPECT_EQ(kernel.python->facts.version, support::parse_version("3.10.12"));
  ASSERT_TRUE(kernel.python->torch);
  EXPECT_EQ(kernel.python->torch->version, "2.8.0+cu128");
  EXPECT_EQ(codes(kernel), Codes());
  EXPECT_FALSE(kernel.stale);
}

TEST_F(Jupyter, WhatTheDoctorSaysOfItsPackages) {
  system_.add_torch(site_, "2.8.0+cu128", "12.8", true);
  system_.add_package(site_, "flash_attn", "2.8.3", "Requires-Dist: torch\n");
  system_.write(site_ + "/flash_attn/flash_attn_interface.py", "import flash_attn_2_cuda as flash_attn_gpu\n");
  add(user_ + "torch28", kernel_json("/home/user/venv/bin/python"));
  const Kernel kernel = only();
  bool seen = false;
  for (const doctor::Judged& item : kernel.judged)
    for (const doctor::Verdict& verdict : item.verdicts) seen |= verdict.code == "MODULE_MISSING";
  EXPECT_TRUE(seen);
}

TEST_F(Jupyter, EveryPlaceThatJupyterLooksInto) {
  system_.set("JUPYTER_PATH", "/shared/jupyter:relative/folder");
  for (const std::string& folder :
       {std::string("/shared/jupyter"), std::string("/home/user/.local/share/jupyter"),
        std::string("/home/user/.ipython"), std::string("/usr/share/jupyter"), std::string("/usr/local/share/jupyter"),
        std::string("/home/user/venv/share/jupyter")})
    add(folder + "/kernels/one", kernel_json("/home/user/venv/bin/python"));
  system_.set("VIRTUAL_ENV", "/home/user/venv");
  const std::vector<Kernel> kernels = list();
  ASSERT_EQ(kernels.size(), 6u);
  EXPECT_EQ(kernels[0].scope, "JUPYTER_PATH");
  EXPECT_EQ(kernels[5].scope, "environment /home/user/venv");
  EXPECT_EQ(codes(kernels[0]), Codes()) << "the first of a name wins";
  expect_covered("JUPYTER_KERNEL_SHADOWED", kernels[1].verdicts, kernels[0].verdicts);
  for (int i = 1; i < 5; ++i) EXPECT_EQ(codes(kernels[std::size_t(i)]), Codes({"JUPYTER_KERNEL_SHADOWED"})) << i;
  EXPECT_EQ(codes(kernels[5]), Codes()) << "another Jupyter's";
}

TEST_F(Jupyter, TheUsersFolderHasThreeNames) {
  EXPECT_EQ(user_jupyter_folder(system_.outlook()), "/home/user/.local/share/jupyter");
  system_.set("XDG_DATA_HOME", "/data");
  EXPECT_EQ(user_jupyter_folder(system_.outlook()), "/data/jupyter");
  system_.set("JUPYTER_DATA_DIR", "/mine");
  EXPECT_EQ(user_jupyter_folder(system_.outlook()), "/mine");
}

TEST_F(Jupyter, StaleOnes) {
  add(user_ + "removed", kernel_json("/home/user/old/bin/python"));
  system_.link("/home/user/broken/bin/python", "/usr/bin/python3.7");
  add(user_ + "upgraded", kernel_json("/home/user/broken/bin/python"));
  system_.write("/home/user/text", "not a program");
  add(user_ + "text", kernel_json("/home/user/text"));
  add(user_ + "path", kernel_json("no-such-kernel"));
  system_.link(user_ + "linked", "/home/user/gone/folder");
  add(user_ + "wrapped",
      R"({"argv": ["/usr/bin/dash", "-c", "/home/user/old/bin/python"], "display_name": "x", "language": "python"})");
  const std::vector<Kernel> kernels = list();
  ASSERT_EQ(kernels.size(), 6u);
  for (const Kernel& kernel : kernels) {
    EXPECT_TRUE(kernel.stale) << kernel.name;
    EXPECT_EQ(codes(kernel), Codes({"JUPYTER_KERNEL_STALE"})) << kernel.name;
    EXPECT_EQ(doctor::exit_code_of(kernel.verdicts), 1);
    EXPECT_NE(kernel.verdicts[0].fix.find("rm "), std::string::npos);
  }
  system_.library("/home/user/old/bin/python", {});
  for (const Kernel& kernel : list())
    if (kernel.name == "removed") expect_covered("JUPYTER_KERNEL_STALE", kernels[2].verdicts, kernel.verdicts);
  EXPECT_EQ(kernels[0].name, "linked");
  EXPECT_NE(kernels[0].verdicts[0].cause.find("/home/user/gone/folder"), std::string::npos);
  EXPECT_EQ(kernels[2].verdicts[0].message, "its interpreter /home/user/old/bin/python is gone");
  EXPECT_NE(kernels[4].verdicts[0].cause.find("/usr/bin/python3.7"), std::string::npos);
}

TEST_F(Jupyter, WithoutIpykernel) {
  system_.remove(site_ + "/ipykernel_launcher.py");
  system_.add_package(site_, "pip", "24.0");
  add(user_ + "bare", kernel_json("/home/user/venv/bin/python"));
  Kernel kernel = only();
  EXPECT_EQ(codes(kernel), Codes({"JUPYTER_NO_IPYKERNEL"}));
  EXPECT_EQ(kernel.verdicts[0].fix, "/home/user/venv/bin/python -m pip install ipykernel");
  system_.write("/home/user/more/ipykernel_launcher.py", "");
  add(user_ + "bare", kernel_json("/home/user/venv/bin/python", R"(, "env": {"PYTHONPATH": "${HOME}/more"})"));
  EXPECT_EQ(codes(only()), Codes()) << "found by its own PYTHONPATH";
  expect_covered("JUPYTER_NO_IPYKERNEL", kernel.verdicts, only().verdicts);
}

TEST_F(Jupyter, TheCommandThatInstallsIpykernel) {
  doctor::PythonInstall python;
  python.program = "/home/a b/bin/python";
  python.prefix = "/home/a b";
  const std::string quoted = "'/home/a b/bin/python'";
  EXPECT_EQ(ipykernel_command(system_.outlook(), python),
            quoted + " -m ensurepip && " + quoted + " -m pip install ipykernel");
  system_.write("/usr/bin/uv", "", true);
  EXPECT_EQ(ipykernel_command(system_.outlook(), python), "uv pip install --python " + quoted + " ipykernel");
  python.kind = "conda";
  EXPECT_EQ(ipykernel_command(system_.outlook(), python), "conda install -p '/home/a b' ipykernel");
}

TEST_F(Jupyter, WhateverPythonJupyterRunsIn) {
  add(user_ + "python3", kernel_json("python"));
  const Kernel varies = only();
  EXPECT_EQ(codes(varies), Codes({"JUPYTER_PYTHON_VARIES"}));
  EXPECT_EQ(doctor::exit_code_of(only().verdicts), 0);
  system_.remove("/home/user/.local");
  add("/home/user/venv/share/jupyter/kernels/python3", kernel_json("python3"));
  system_.set("VIRTUAL_ENV", "/home/user/venv");
  const Kernel kernel = only();
  EXPECT_EQ(kernel.program, "/home/user/venv/bin/python") << "that of its environment";
  EXPECT_EQ(codes(kernel), Codes());
  expect_covered("JUPYTER_PYTHON_VARIES", varies.verdicts, kernel.verdicts);
}

TEST_F(Jupyter, BehindOtherWords) {
  system_.write("/opt/start.sh", "#!/bin/sh\n", true);
  add(user_ + "wrapped",
      R"({"argv": ["/opt/start.sh", "/home/user/venv/bin/python", "-m", "ipykernel_launcher"], "language": "python"})");
  EXPECT_EQ(only().python->prefix, "/home/user/venv");
  add(user_ + "wrapped", R"({"argv": ["/opt/start.sh", "{connection_file}"], "language": "python"})");
  EXPECT_EQ(codes(only()), Codes({"CANNOT_TELL"}));
  add(user_ + "wrapped", R"({"argv": ["/opt/start.sh", "{connection_file}"], "language": "R"})");
  EXPECT_EQ(codes(only()), Codes()) << "not ours to judge";
  add(user_ + "wrapped", R"({"argv": ["{resource_dir}/start.sh"], "language": "R"})");
  system_.write(user_ + "wrapped/start.sh", "", true);
  EXPECT_EQ(only().program, user_ + "wrapped/start.sh");
}

TEST_F(Jupyter, HostileDescriptions) {
  const std::string deep(200'000, '[');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not JSON"},
      {"[]", "no JSON object"},
      {"{\"argv\": " + deep, "not JSON"},
      {"{}", "argv is missing"},
      {R"({"argv": []})", "argv is missing"},
      {R"({"argv": "python"})", "argv is missing"},
      {R"({"argv": ["a", 3]})", "argv[1] is no text"},
      {R"({"argv": ["a\u0000b"]})", "argv[0] is no text"},
      {R"({"argv": [""]})", "argv[0] is empty"},
      {R"({"argv": ["a"], "env": ["b"]})", "env is no JSON object"},
      {R"({"argv": ["a"], "env": {"b": {}}})", "env has a value"},
      {std::string("{\"argv\": [\"\xff\xfe\"]}"), "not JSON"},
      {std::string(2 << 20, ' '), "larger than 1 MiB"},
  };
  for (const auto& [text, about] : cases) {
    add(user_ + "bad", text);
    const Kernel kernel = only();
    ASSERT_EQ(codes(kernel), Codes({"JUPYTER_KERNEL_SPEC"})) << text.substr(0, 100);
    EXPECT_NE(kernel.verdicts[0].message.find(about), std::string::npos) << kernel.verdicts[0].message;
  }
  add(user_ + "bad", "{\"argv\": [\"a\"], \"metadata\": " + deep + std::string(deep.size(), ']') + "}");
  EXPECT_EQ(codes(only()), Codes({"JUPYTER_KERNEL_STALE"})) << "deep, and else in order: a is no program";
  std::string many = "{\"argv\": [\"a\"";
  for (int i = 0; i < 2000; ++i) many += ", \"b\"";
  add(user_ + "bad", many + "]}");
  EXPECT_EQ(codes(only()), Codes({"JUPYTER_KERNEL_SPEC"}));
  system_.remove(user_ + "bad/kernel.json");
  EXPECT_TRUE(list().empty()) << "Jupyter takes no notice of such a folder either";
  system_.link(user_ + "bad/kernel.json", "/nowhere");
  EXPECT_EQ(codes(only()), Codes({"JUPYTER_KERNEL_SPEC"}));
  const Kernel linked = only();
  system_.remove(user_ + "bad");
  add(user_ + "good", kernel_json("/home/user/venv/bin/python"));
  expect_covered("JUPYTER_KERNEL_SPEC", linked.verdicts, only().verdicts);
  system_.remove(user_ + "good");
  add(user_ + "sp ace", kernel_json("/home/user/venv/bin/python"));
  EXPECT_EQ(codes(only()), Codes({"JUPYTER_KERNEL_SPEC"}));
}

TEST_F(Jupyter, NothingIsStarted) {
  const std::string witness = system_.root() + "/witness";
  const std::string script = "#!/bin/sh\ntouch " + witness + "\n";
  system_.write("/opt/evil/bin/python", script, true);
  add(user_ + "evil", kernel_json("/opt/evil/bin/python", R"(, "env": {"PATH": "/opt/evil/bin"})"));
  add(user_ + "evil2", R"({"argv": ["sh", "-c", "touch /tmp/mica-witness"], "language": "python"})");
  EXPECT_EQ(list().size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(witness));
}

TEST(KernelName, LettersDigitsAndThreeSigns) {
  for (const char* good : {"a", "Torch-2.8_gpu", "3"}) EXPECT_TRUE(is_kernel_name(good)) << good;
  for (const char* bad : {"", ".", "..", "a b", "a/b", "\xc3\xa4", "a\n", "$(a)"})
    EXPECT_FALSE(is_kernel_name(bad)) << bad;
  EXPECT_FALSE(is_kernel_name(std::string(101, 'a')));
}

TEST(Quote, ForAShell) {
  EXPECT_EQ(support::shell_quoted("/a/b-c_d.e"), "/a/b-c_d.e");
  EXPECT_EQ(support::shell_quoted(""), "''");
  EXPECT_EQ(support::shell_quoted("a b"), "'a b'");
  EXPECT_EQ(support::shell_quoted("it's $HOME;"), "'it'\\''s $HOME;'");
}

TEST(KernelJsonText, KeepsWhatIpykernelSays) {
  const std::string own = R"({"argv": ["/p", "-m", "x"], "display_name": "Python 3", "metadata": {"debugger": true}})";
  const std::string text = kernel_json_text(own, "N\"ame", {{"A", "b"}});
  const doctor::KernelSpec spec = doctor::parse_kernel_spec(text);
  EXPECT_EQ(spec.argv, std::vector<std::string>({"/p", "-m", "x"}));
  EXPECT_EQ(spec.display_name, "N\"ame");
  EXPECT_EQ(spec.env.at("A"), "b");
  EXPECT_NE(text.find("debugger"), std::string::npos);
  EXPECT_TRUE(same_kernel_json(text, kernel_json_text(text, "N\"ame", {})));
  EXPECT_FALSE(same_kernel_json(text, kernel_json_text(own, "N\"ame", {})));
  EXPECT_FALSE(same_kernel_json("no", "no"));
}

}  // namespace
}  // namespace jupyter
