// SPDX-License-Identifier: Apache-2.0
// Every known failure, in clean text and in what terminals, launchers, loggers and people make of it.
#include "doctor/explain/explain.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "doctor/explain/known_failures.h"
#include "doctor/explain/pattern.h"
#include "doctor/verdict/catalogue.h"
#include "tests/doctor/explain/explain_cases.h"
#include "tests/thin.h"
#include "tests/verdict_notes.h"

namespace doctor {
namespace {

using explain_cases::Case;

std::string each_line(const std::string& text, const std::function<std::string(const std::string&)>& change) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) out += change(line) + "\n";
  return out;
}

// A terminal breaks a line wherever it ends.
std::string wrapped(const std::string& text, std::size_t columns) {
  return each_line(text, [&](const std::string& line) {
    std::string out;
    for (std::size_t i = 0; i < line.size(); i += columns) out += (i ? "\n" : "") + line.substr(i, columns);
    return out;
  });
}

// An editor breaks it between words.
std::string filled(const std::string& text, std::size_t columns) {
  return each_line(text, [&](const std::string& line) {
    std::istringstream words(line);
    std::string out;
    std::size_t length = 0;
    for (std::string word; words >> word; length += word.size() + 1) {
      if (length + word.size() > columns && length > 0) out += "\n    ", length = 0;
      out += word + " ";
    }
    return out;
  });
}

struct Noise {
  const char* name;
  std::function<std::string(const std::string&)> make;
};

const std::vector<Noise>& noises() {
  static const std::vector<Noise> all = {
      {"plain", [](const std::string& s) { return s; }},
      {"crlf", [](const std::string& s) { return each_line(s, [](const auto& l) { return l + "\r"; }); }},
      {"colours",
       [](const std::string& s) {
         return each_line(s, [](const auto& l) {
           return "\x1b[31;1m" + l.substr(0, 9) + "\x1b[0m" + l.substr(std::min<std::size_t>(9, l.size()));
         });
       }},
      {"ranks",
       [](const std::string& s) {
         return each_line(s, [](const auto& l) { return "[rank3]: 2026-05-01 10:11:12,345 " + l; });
       }},
      {"docker", [](const std::string& s) { return each_line(s, [](const auto& l) { return "#12 345.6 " + l; }); }},
      {"workers",
       [](const std::string& s) {
         return each_line(s, [](const auto& l) { return "(EngineCore_0 pid=4711) ERROR 07:08:09 " + l; });
       }},
      {"frame", [](const std::string& s) { return each_line(s, [](const auto& l) { return "│ " + l + "   │"; }); }},
      {"mail", [](const std::string& s) { return each_line(s, [](const auto& l) { return "> >       " + l; }); }},
      {"wrapped80", [](const std::string& s) { return wrapped(s, 80); }},
      {"wrapped61", [](const std::string& s) { return wrapped(s, 61); }},
      {"filled72", [](const std::string& s) { return filled(s, 72); }},
      {"long_log",
       [](const std::string& s) {
         std::string before, after;
         for (int i = 0; i < 300; ++i) {
           before += "[" + std::to_string(i) + "/999] copying flash_attn/ops/a.py -> build/lib/flash_attn/ops\n";
           after += "  File \"/usr/lib/python3.10/x.py\", line " + std::to_string(i) + ", in run\n";
         }
         return before + s + "\n" + after +
                "note: This error originates from a subprocess, and is likely not a problem with pip.\n";
       }},
  };
  return all;
}

// A text of a public thread, from the files beside this one.
struct Thread {
  std::string code, where, says, text;
};

const std::vector<Thread>& threads() {
  static const std::vector<Thread> all = [] {
    std::vector<Thread> out;
    for (const char* name : {"loader.txt", "install.txt", "build.txt"}) {
      std::ifstream file(std::string(MICA_TEST_THREADS) + "/" + name);
      for (std::string line; std::getline(file, line);) {
        if (line.rfind("=== ", 0) == 0) {
          const std::size_t first = line.find(" | "), second = line.find(" | ", first + 3);
          out.push_back(
              {line.substr(4, first - 4), line.substr(first + 3, second - first - 3), line.substr(second + 3), ""});
        } else if (!out.empty()) {
          out.back().text += line + "\n";
        }
      }
    }
    return out;
  }();
  return all;
}

bool is_command(const std::string& fix) {
  for (const char* word : {"pip", "conda ", "apt-get ", "export ", "unset ", "mica ", "git ", "python",
                           "LD_PRELOAD=", "rm ", "namei ", "docker ", "nvidia-smi", "TMPDIR=", "torch_dtype="})
    if (fix.find(word) != fix.npos) return true;
  return false;
}

std::string all_that_is_said(const Verdict& verdict) {
  std::string out = verdict.cause + "\n" + verdict.fix + "\n" + verdict.message + "\n" + verdict.subject;
  for (const std::string& line : verdict.evidence) out += "\n" + line;
  return out;
}

TEST(Threads, EachHasItsFirstCauseAndACommand) {
  std::set<std::string> repositories;
  for (const Thread& thread : threads()) {
    SCOPED_TRACE(thread.where + "\n" + thread.text);
    repositories.insert(thread.where.substr(0, thread.where.find('#')));
    const Explanation explanation = explain(thread.text);
    if (explanation.verdicts.empty()) {
      ADD_FAILURE() << "nothing is known";
      continue;
    }
    const Verdict& first = explanation.verdicts[0];
    EXPECT_EQ(first.code, thread.code) << first.message << "\n" << first.cause;
    EXPECT_NE(all_that_is_said(first).find(thread.says), std::string::npos) << thread.says << " is not in:\n"
                                                                            << all_that_is_said(first);
    EXPECT_TRUE(is_command(first.fix)) << first.fix;
    EXPECT_EQ((first.cause + first.fix).find("{p"), std::string::npos) << first.cause << first.fix;
    EXPECT_TRUE(!explanation.cause_found || first.cause.find("not in this text") == std::string::npos) << first.cause;
  }
  EXPECT_GE(threads().size(), 150u);
  EXPECT_GE(repositories.size(), 80u);
}

class Known : public testing::TestWithParam<Case> {};

TEST_P(Known, InAllItsForms) {
  const Case& c = GetParam();
  for (const Noise& noise : noises()) {
    SCOPED_TRACE(noise.name);
    const std::string text = noise.make(c.text);
    const Explanation explanation = explain(text);
    ASSERT_FALSE(explanation.verdicts.empty()) << text;
    const Verdict& first = explanation.verdicts[0];
    EXPECT_EQ(first.code, c.code) << text << "\n" << first.message;
    EXPECT_NE((first.cause + first.fix + first.message + first.subject +
               (first.evidence.empty() ? "" : first.evidence.back()))
                  .find(c.says),
              std::string::npos)
        << first.cause << "\n"
        << first.fix;
    EXPECT_FALSE(first.evidence.empty());
    EXPECT_FALSE(first.cause.empty());
    EXPECT_FALSE(first.fix.empty());
    EXPECT_EQ((first.cause + first.fix).find('{'), std::string::npos) << first.cause << first.fix;
    ASSERT_NE(find_verdict_kind(first.code.name()), nullptr) << first.code;
  }
}

INSTANTIATE_TEST_SUITE_P(Explain, Known, testing::ValuesIn(explain_cases::all()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Explain, EveryCodeHasANearMiss) {
  std::set<std::string> missed;
  for (const explain_cases::NearMiss& miss : explain_cases::near_misses()) {
    std::vector<Verdict> given;
    for (const Case& c : explain_cases::all())
      if (std::string(c.code) == miss.code) given = explain(c.text).verdicts;
    expect_covered(miss.code, given, explain(miss.text).verdicts);
    missed.insert(miss.code);
  }
  for (const Case& c : explain_cases::all()) EXPECT_TRUE(missed.count(c.code)) << c.code;
}

TEST(Explain, TheFirstCauseNotTheLastSymptom) {
  const Explanation build = explain(
      "Guessing wheel URL:  https://x/flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl\n"
      "Precompiled wheel not found. Building from source...\n"
      "FAILED: a.o\n"
      "nvcc fatal   : Unsupported gpu architecture 'compute_120'\n"
      "ninja: build stopped: subcommand failed.\n"
      "subprocess.CalledProcessError: Command '['ninja', '-v', '-j', '64']' returned non-zero exit status 1.\n"
      "RuntimeError: Error compiling objects for extension\n"
      "OSError: [Errno 28] No space left on device\n"
      "ERROR: Failed building wheel for flash-attn\n");
  ASSERT_EQ(build.verdicts.size(), 3u);
  EXPECT_EQ(build.verdicts[0].code, "BUILD_ARCH_UNSUPPORTED_BY_NVCC");
  EXPECT_EQ(build.verdicts[1].code, "DISK_FULL");
  EXPECT_EQ(build.verdicts[2].code, "URL_GUESS_404");  // the symptoms are not told
  EXPECT_TRUE(build.cause_found);
  EXPECT_EQ(build.verdicts[0].evidence[0].rfind("line 4: ", 0), 0u);

  const Explanation chain = explain(
      "ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEa\n"
      "The above exception was the direct cause of the following exception:\n"
      "RuntimeError: Failed to import transformers.models.llama because of the following error (look up)\n"
      "ImportError: the package flash_attn seems to be not installed\n");
  EXPECT_EQ(chain.verdicts[0].code, "TORCH_SIGNATURE");
}

TEST(Explain, OtherTextIsNotKnown) {
  for (const char* text :
       {"", "\n\n", "hello", "Killed it today, great talk!", "The job was killed by its owner.",
        "undefined symbols are explained in chapter 3", "symbol: x", "version GLIBC_2.32 is nice",
        "I have no module for that", "libcudart.so.12 => /usr/lib/libcudart.so.12 (0x00007f)", "GLIBC_2.32",
        "flash_attn_2_cuda imported fine", "PyInit_foo is defined", "nvcc: NVIDIA (R) Cuda compiler driver",
        "the ELF header is valid", "kernel image loaded", "unpad_input returns five values", "TLS handshake failed"}) {
    const Explanation explanation = explain(text);
    EXPECT_TRUE(explanation.verdicts.empty()) << text << " -> " << explanation.verdicts[0].code.name();
    EXPECT_FALSE(explanation.cause_found);
  }
  EXPECT_EQ(likely_error_line("all well\nValueError: strange\nbye"), "ValueError: strange");
  EXPECT_EQ(likely_error_line("all well"), "");
}

TEST(Explain, AMissingModuleOfAProgramIsNoBuild) {
  EXPECT_EQ(explain("ModuleNotFoundError: No module named 'torch'").verdicts[0].code, "TORCH_MISSING");
  const Verdict pandas = explain("ModuleNotFoundError: No module named 'pandas'").verdicts.at(0);
  EXPECT_EQ(pandas.code, "PACKAGE_MISSING");
  EXPECT_NE(pandas.fix.find("pip install pandas"), std::string::npos);
}

TEST(Explain, LinesAreNotGluedToWhatFollows) {
  const auto symbol_in = [](const std::string& text) { return explain(text).verdicts.at(0).message; };
  const std::string line =
      "ImportError: /opt/conda/lib/python3.10/site-packages/a.so: undefined symbol: _ZN3c104cuda9SetDeviceEa";
  for (const char* next : {"\nsame\n", "\nsame", "\nme too\n", "\n\nsame\n", "\nE\n", "\nhelp, please\n"})
    EXPECT_EQ(symbol_in(line + next), "undefined symbol: _ZN3c104cuda9SetDeviceEa") << next;
  EXPECT_EQ(symbol_in(line + "\n" + std::string(line.size() + 5, '-') + "\nb\n"),
            "undefined symbol: _ZN3c104cuda9SetDeviceEa");
  const std::string plain =
      "ImportError: /opt/conda/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: "
      "ncclCommRegister\nsame, torch 2.2\n" +
      std::string(200, '-') + "\n";
  EXPECT_EQ(symbol_in(plain).find("same"), std::string::npos) << symbol_in(plain);
  // Without a cause the lines that fill the terminal are joined, and only those.
  EXPECT_TRUE(explain("Kil\nled\n").verdicts.empty());
}

TEST(Explain, NotInThisTextOnlyIfItIsNot) {
  const Verdict without = explain("ninja: build stopped: subcommand failed.").verdicts.at(0);
  EXPECT_NE(without.cause.find("not in this text"), std::string::npos) << without.cause;
  const Verdict with =
      explain(
          "a.cu(12): error: identifier \"half3\" is undefined\n"
          "ninja: build stopped: subcommand failed.\n"
          "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n")
          .verdicts.at(0);
  EXPECT_EQ(with.code, "BUILD_FAILED");
  EXPECT_EQ(with.cause.find("not in this text"), std::string::npos) << with.cause;
  EXPECT_NE(with.cause.find("line 1"), std::string::npos) << with.cause;
  EXPECT_NE(with.evidence.back().find("half3"), std::string::npos);
}

TEST(Explain, WhatIsAdvisedForFlashAttnIsForItAlone) {
  const auto advises = [](const std::string& file) {
    const Verdict verdict =
        explain("ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by " + file + ")\n")
            .verdicts.at(0);
    return (verdict.cause + verdict.fix).find("flash-attn") != std::string::npos;
  };
  EXPECT_TRUE(advises("/v/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so"));
  EXPECT_FALSE(advises("/v/site-packages/other/_C.so"));
}

TEST(Explain, NumPyHasTwoDirections) {
  const auto fix = [](const char* text) { return explain(text).verdicts.at(0).fix; };
  EXPECT_NE(fix("ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 88 from C header, "
                "got 96 from PyObject")
                .find("'numpy>=2'"),
            std::string::npos);
  EXPECT_NE(fix("RuntimeError: module compiled against ABI version 0x2000000 but this version of numpy is 0x1000009")
                .find("'numpy>=2'"),
            std::string::npos);
  EXPECT_NE(fix("RuntimeError: module compiled against ABI version 0x1000009 but this version of numpy is 0x2000000")
                .find("'numpy<2'"),
            std::string::npos);
}

TEST(Explain, AnAbridgedSymbolIsTheAbiOrTheVersion) {
  const Verdict verdict = explain("ImportError: a.so: undefined symbol: _ZN3c105ErrorC2E...").verdicts.at(0);
  EXPECT_NE(verdict.cause.find("C++ ABI"), std::string::npos) << verdict.cause;
  EXPECT_NE(verdict.cause.find("version of PyTorch"), std::string::npos) << verdict.cause;
  EXPECT_EQ(verdict.message, "undefined symbol: _ZN3c105ErrorC2E");
}

TEST(Explain, ARemedyIsToldAfterTheCause) {
  const Explanation explanation = explain(
      "ENV FLASH_ATTENTION_FORCE_CXX11_ABI=1\nImportError: a.so: undefined symbol: "
      "_ZN3c105ErrorC2ENS_14SourceLocationESs\n");
  ASSERT_EQ(explanation.verdicts.size(), 2u);
  EXPECT_EQ(explanation.verdicts[0].code, "TORCH_CXX11_ABI");
  EXPECT_EQ(explanation.verdicts[1].code, "FOLK_REMEDY");
  EXPECT_NE(explanation.verdicts[1].cause.find("exactly TRUE"), std::string::npos);
  EXPECT_TRUE(explanation.cause_found);
  EXPECT_FALSE(explain("DS_SKIP_CUDA_CHECK=1 worked for me").cause_found);
}

TEST(Explain, TextFromElsewhereIsNotJudgedByThisTorch) {
  Environment here;
  here.torch.emplace();
  here.torch->version = "2.9.1+cu128";
  here.torch->cxx_abi = CxxAbi::kNew;
  here.python.emplace();
  here.python->executable = "/v/bin/python";
  here.python->version = parse_version("3.12.4");
  here.python->site_packages = {"/v/lib/python3.12/site-packages"};
  const std::string symbol =
      "a.so: undefined symbol: "
      "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
  // Here it cannot be the ABI; there it is.
  const Verdict there =
      explain_pasted("ImportError: /home/u/lib/python3.10/site-packages/" + symbol, here).verdicts.at(0);
  EXPECT_EQ(there.code, "TORCH_CXX11_ABI");
  EXPECT_EQ(all_that_is_said(there).find("/v/bin/python"), std::string::npos);
  EXPECT_NE(all_that_is_said(there).find("the text is of Python 3.10 in /home/u/lib/python3.10/site-packages"),
            std::string::npos)
      << all_that_is_said(there);
  EXPECT_NE(all_that_is_said(there).find("torch 2.9.1+cu128"), std::string::npos);
  const Verdict ours = explain_pasted("ImportError: /v/lib/python3.12/site-packages/" + symbol, here).verdicts.at(0);
  EXPECT_EQ(ours.code, "TORCH_SIGNATURE");
  EXPECT_EQ(all_that_is_said(ours).find("the text is of"), std::string::npos);
  EXPECT_EQ(explain_pasted("ImportError: " + symbol, here).verdicts.at(0).code, "TORCH_SIGNATURE");  // it does not say
  // An extension of another Python, without a folder; and a build's throw-away environment, which is no other machine.
  EXPECT_EQ(explain_pasted("ImportError: a.cpython-310-x86_64-linux-gnu.so" + symbol.substr(4), here).verdicts[0].code,
            "TORCH_CXX11_ABI");
  EXPECT_EQ(explain_pasted("File \"/tmp/pip-build-env-x/overlay/lib/python3.12/site-packages/setuptools/x.py\"\n"
                           "ModuleNotFoundError: No module named 'torch'",
                           here)
                .verdicts[0]
                .evidence.back()
                .find("the text is of"),
            std::string::npos);
}

TEST(Explain, AHintIsNoCause) {
  const Explanation guess = explain(
      "flash-attn\nPrecompiled wheel not found. Building from source...\nSuccessfully installed flash-attn-2.8.3\n");
  EXPECT_FALSE(guess.cause_found);
  EXPECT_TRUE(guess.success_seen);
  EXPECT_EQ(guess.verdicts[0].severity, Severity::kNote);
  const Explanation symptom = explain("ninja: build stopped: subcommand failed.");
  EXPECT_FALSE(symptom.cause_found);
  EXPECT_FALSE(symptom.success_seen);
  EXPECT_EQ(symptom.verdicts[0].severity, Severity::kWarning);
}

TEST(Explain, AConnectionThatWasTriedAgain) {
  const std::string retry =
      "WARNING: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError(\"Read timed out.\")': /x/\n";
  const std::string done = "Successfully installed torch-2.8.0\n";
  const Explanation well = explain(retry + retry + done);
  EXPECT_FALSE(well.cause_found);
  EXPECT_TRUE(well.success_seen);
  for (const std::string& text :
       {retry, done + retry, retry + done + "ERROR: HTTPSConnectionPool: Read timed out.\n"}) {
    const Explanation broken = explain(text);
    ASSERT_TRUE(broken.cause_found) << text;
    EXPECT_EQ(broken.verdicts[0].code, "NETWORK");
  }
  // Of two that succeed, the later one counts too.
  EXPECT_TRUE(explain(done + "flash-attn\nPrecompiled wheel not found. Building from source...\n" + done).success_seen);
}

TEST(Explain, TheTargetDecidesWhichAbi) {
  const char* text =
      "ImportError: x.so: undefined symbol: "
      "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
  Environment target;
  target.torch.emplace();
  target.torch->version = "2.5.1+cu124";
  target.torch->cxx_abi = CxxAbi::kOld;
  target.python.emplace();
  target.python->executable = "/v/bin/python";
  const Explanation other = explain(text, &target);
  EXPECT_EQ(other.verdicts[0].code, "TORCH_CXX11_ABI");
  EXPECT_NE(other.verdicts[0].cause.find("torch 2.5.1+cu124 has the old one"), std::string::npos);
  EXPECT_NE(other.verdicts[0].fix.find("/v/bin/python -m pip"), std::string::npos);
  target.torch->cxx_abi = CxxAbi::kNew;  // so it cannot be the ABI
  EXPECT_EQ(explain(text, &target).verdicts[0].code, "TORCH_SIGNATURE");
}

TEST(Explain, EveryRowIsInTheCatalogueAndHasACase) {
  std::vector<LogText> texts;
  for (const Case& c : explain_cases::all()) texts.push_back(read_log(c.text));
  for (const Thread& t : threads()) texts.push_back(read_log(t.text));
  for (const auto rows : all_known_failures())
    for (const KnownFailure& row : rows) {
      EXPECT_NE(find_verdict_kind(row.code.name()), nullptr) << row.code;
      bool has_case = false;
      for (const LogText& text : texts)
        for (const char* pattern : row.patterns) has_case |= find_pattern(text, pattern).has_value();
      EXPECT_TRUE(has_case) << row.code << " " << row.patterns[0];
    }
}

// A pattern that begins with a quotation mark or a blank has nothing that a search could look for.
TEST(Explain, EveryPatternMatchesItsOwnWords) {
  for (const auto rows : all_known_failures())
    for (const KnownFailure& row : rows)
      for (const std::string pattern : row.patterns) {
        std::string words;
        for (std::size_t i = 0; i < pattern.size(); ++i) {
          if (pattern.compare(i, 3, "...") == 0) {
            words += " and more ";
            i += 2;
          } else if (pattern[i] == '{' && pattern.find('}', i) != pattern.npos) {
            i = pattern.find('}', i);
            words += "word";
          } else if (pattern[i] != '^' && pattern[i] != '$') {
            words += pattern[i];
          }
        }
        EXPECT_TRUE(find_pattern(read_log(words), pattern)) << row.code.text() << " " << pattern;
      }
}

TEST(Explain, NothingThatATerminalObeysComesBack) {
  const Explanation explanation = explain(
      "ImportError: /x/\x9b"
      "31mlib\xc2\x9b"
      "2J\x7f\t.so: undefined symbol: _ZN3foo3barEv\n");
  ASSERT_FALSE(explanation.verdicts.empty());
  const std::string said = verdict_text(explanation.verdicts[0], false);
  for (const char* bad : {"\x9b", "\x7f", "\t", "\xc2"}) EXPECT_EQ(said.find(bad), std::string::npos) << said;
  EXPECT_NE(said.find("\\x9b31mlib"), std::string::npos) << said;
  EXPECT_EQ(likely_error_line("Error: \x9bx"), "Error: \\x9bx");
}

// Read once and not again from every line: that would take hours, and ctest's limit ends it.
TEST(Explain, HostileTextIsReadOnce) {
  // The longest is longer than what is read; under a sanitizer it is so in a full run alone.
  const std::size_t megabyte = is_thin() ? 1u << 15 : 1u << 20;
  std::string text(24 * megabyte, 'x');
  for (std::size_t i = 0; i < text.size(); i += 97) text[i] = i % 2 ? '\n' : '\'';
  EXPECT_TRUE(explain(text).verdicts.empty());
  EXPECT_TRUE(explain(std::string(4 * megabyte, '\n')).verdicts.empty());
  EXPECT_TRUE(explain(std::string(4 * megabyte, '\x1b')).verdicts.empty());
  std::string symbols;
  while (symbols.size() < 2 * megabyte) symbols += "undefined symbol: _ZN\n_ZN\n";
  explain(symbols);
}

TEST(Explain, TheEndOfALongLogIsRead) {
  static_assert(kLogLimit < 20u << 20);
  std::string end(20 << 20, '.');
  end += "\nKilled\n";
  EXPECT_EQ(explain(end).verdicts.at(0).code, "BUILD_OOM");
}

TEST(VerdictText, NeverSpeaksToTheTerminal) {
  const Verdict verdict = make_verdict({.code = "CANNOT_TELL",
                                        .subject = "a\x1b[2J.so",
                                        .message = "b\nc",
                                        .cause = "one\ntwo\x07",
                                        .fix = "d\re",
                                        .evidence = {"\x9bm"}});
  EXPECT_EQ(verdict_text(verdict, false),
            std::string(severity_name(verdict.severity)) +
                " CANNOT_TELL  a\\x1b[2J.so: b\\x0ac\n  cause     one\n            two\\x07\n  fix       d\\x0de\n"
                "  evidence  \\x9bm\n");
}

TEST(Pattern, Language) {
  const auto at = [](const char* text, const char* pattern) { return find_pattern(read_log(text), pattern); };
  EXPECT_TRUE(at("a  b", "a b"));
  EXPECT_TRUE(at("a\n  b", "a b"));
  EXPECT_FALSE(at("ab", "a b"));
  EXPECT_TRUE(at("say `x'", "say 'x'"));
  EXPECT_TRUE(at("say “x”", "say 'x'"));
  EXPECT_EQ(at("version (12.4) of", "version ({v})")->captures.at("v"), "12.4");
  EXPECT_EQ(at("got 12.4.", "got {v}")->captures.at("v"), "12.4");
  EXPECT_EQ(at("file a b.so: bad", "file {f*}: bad")->captures.at("f"), "a b.so");
  EXPECT_EQ(at("x libfoo.so.1: missing", "{l}: missing")->captures.at("l"), "libfoo.so.1");
  EXPECT_FALSE(at(": missing", "{l}: missing"));
  EXPECT_TRUE(at("one\ntwo", "^two$"));
  EXPECT_FALSE(at("one two", "^two$"));
  EXPECT_FALSE(at("two three", "^two$"));
  EXPECT_TRUE(at("begin and then the end", "begin...end"));
  EXPECT_FALSE(at(("begin" + std::string(600, '-') + "end").c_str(), "begin...end"));
  EXPECT_EQ(at("s: _ZN3c104cuda9SetDev\niceEab\nTraceback", "s: {s@}")->captures.at("s"), "_ZN3c104cuda9SetDeviceEab");
  EXPECT_EQ(at("s: _ZN3c104cuda9SetDeviceEa\nTraceback (most", "s: {s@}")->captures.at("s"),
            "_ZN3c104cuda9SetDeviceEa");
}

}  // namespace
}  // namespace doctor
