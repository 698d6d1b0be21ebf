// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/pick.h"

#include <gtest/gtest.h>

#include <set>

#include "doctor/facts/mangled.h"
#include "doctor/judge/attention_wheel.h"
#include "tests/verdict_notes.h"

namespace doctor {
namespace {

PickTarget target(const char* python = "3.12", const char* torch = "2.8.0", const char* cuda = "12.8") {
  PickTarget out;
  out.python = parse_version(python);
  out.torch = parse_version(torch);
  out.cuda = parse_version(cuda);
  out.glibc = parse_version("2.35");
  out.cxx_abi = CxxAbi::kNew;
  out.machine = "x86_64";
  return out;
}

// Those of upstream's release 2.8.3, about which the older cases are.
std::vector<AttentionWheel> of_2_8_3() {
  std::vector<AttentionWheel> out = published_wheels();
  std::erase_if(out, [](const AttentionWheel& w) {
    return w.version != "2.8.3" || w.url.find("Dao-AILab") == std::string::npos;
  });
  return out;
}

TEST(PublishedWheels, AreThoseOfTheRelease) {
  const auto wheels = published_wheels();
  // 2.8.3: 5 Pythons x 5 torches x 2 ABIs - 2, and one for aarch64; 2.8.3.post2: 8 + 16 + 32; and the community's.
  EXPECT_GT(wheels.size(), 49u + 56u + 200u);
  EXPECT_EQ(of_2_8_3().size(), 49u);
  EXPECT_GT(published_wheels("flash-attn-3").size(), 20u);
  for (const AttentionWheel& wheel : published_wheels("flash-attn-3")) EXPECT_EQ(wheel.package, "flash-attn-3");
  std::set<std::string> names;
  for (const AttentionWheel& wheel : wheels) {
    EXPECT_TRUE(names.insert(wheel.file).second) << wheel.file;
    EXPECT_TRUE(wheel.cuda.known() && wheel.torch.known() && wheel.cxx_abi != CxxAbi::kUnknown) << wheel.file;
    EXPECT_EQ(wheel.url.find('+'), std::string::npos);
  }
  EXPECT_TRUE(names.count("flash_attn-2.8.3+cu12torch2.7cxx11abiFALSE-cp39-cp39-linux_x86_64.whl"));
  EXPECT_FALSE(names.count("flash_attn-2.8.3+cu12torch2.4cxx11abiTRUE-cp313-cp313-linux_x86_64.whl"));
  EXPECT_FALSE(names.count("flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"));
  EXPECT_TRUE(names.count("flash_attn-2.8.3.post2+cu13torch2.10cxx11abiTRUE-cp313-cp313-linux_aarch64.whl"));
  EXPECT_FALSE(names.count("flash_attn-2.8.3.post2+cu13torch2.8cxx11abiTRUE-cp313-cp313-linux_x86_64.whl"));
  EXPECT_EQ(std::string(kPublishedAsOf), "2026-08-22");
}

TEST(Pick, WhatIsPublishedForNewerTorches) {
  EXPECT_EQ(pick(target("3.12", "2.9.1", "12.8"), published_wheels()).candidates[0].wheel.file,
            "flash_attn-2.8.3.post2+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl");
  const Pick community = pick(target("3.12", "2.12.0", "13.0"), published_wheels());
  ASSERT_TRUE(community.fits());
  EXPECT_NE(community.verdicts[0].fix.find("mjun0812"), std::string::npos) << community.verdicts[0].fix;
  EXPECT_FALSE(pick(target("3.12", "2.15.0", "13.2"), published_wheels()).fits());
}

// A name that does not say which torch it is for fits none, until its symbols were read.
TEST(Pick, AnUnknownTorchIsNoFit) {
  AttentionWheel plain;
  ASSERT_TRUE(parse_attention_wheel("flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", plain));
  const Pick unknown = pick(target(), {plain});
  EXPECT_FALSE(unknown.fits());
  EXPECT_EQ(unknown.candidates[0].differences.at(0).wheel, "not said by its name");
  plain.tried = AttentionWheel::Tried::kLoads;
  EXPECT_TRUE(pick(target(), {plain}).fits());
  plain.tried = AttentionWheel::Tried::kFails;
  plain.failure = "TORCH_SIGNATURE: ImportError";
  const Pick failed = pick(target(), {plain});
  EXPECT_FALSE(failed.fits());
  EXPECT_EQ(failed.candidates[0].differences.at(0).wheel, plain.failure);
}

// A nightly has the number of a release that it is not: a wheel for that release fits by chance alone.
TEST(Pick, ATorchThatWasNotReleased) {
  for (const char* version : {"2.8.0.dev20250610+cu128", "2.8.0a0+5228986c39.nv25.05", "2.8.0a0+git1b2c3d", "2.8.0b1"})
    EXPECT_TRUE(is_unreleased(version)) << version;
  for (const char* version : {"2.8.0", "2.8.0+cu128", "2.8.0rc2+cu128", "2.8.0.post1", "2.8", "", "2.8.0+abc"})
    EXPECT_FALSE(is_unreleased(version)) << version;
  Environment here;
  here.torch.emplace();
  here.torch->version = "2.8.0.dev20250610+cu128";
  EXPECT_TRUE(pick_target(here).torch_unreleased);
  PickTarget nightly = target();
  nightly.torch_unreleased = true;
  std::vector<AttentionWheel> wheels = of_2_8_3();
  const Pick found = pick(nightly, wheels);
  EXPECT_FALSE(found.fits());
  ASSERT_EQ(found.candidates[0].differences.size(), 1u);
  EXPECT_EQ(found.candidates[0].differences[0].wheel, "2.8 as released");
  EXPECT_EQ(found.candidates[0].wheel.file, pick(target(), wheels).candidates[0].wheel.file);
  // One whose symbols were read fits, whatever the number.
  wheels = {found.candidates[0].wheel};
  wheels[0].tried = AttentionWheel::Tried::kLoads;
  EXPECT_TRUE(pick(nightly, wheels).fits());
  EXPECT_EQ(usual_cxx_abi("2.5.0a0+872d972e41.nv24.08", "x86_64"), CxxAbi::kUnknown);
}

TEST(Pick, WhatServesInOrderOfEffort) {
  const std::string fix = pick(target("3.12", "2.15.0", "13.2"), published_wheels()).verdicts.at(0).fix;
  const std::size_t drop_in = fix.find("drop-in"), build = fix.find("mica build flash-attn"),
                    other = fix.find("torch==");
  EXPECT_LT(drop_in, build) << fix;
  EXPECT_LT(build, other) << fix;
  EXPECT_NE(fix.find("in a new environment"), std::string::npos) << fix;
}

TEST(WheelNames, OfEverySort) {
  AttentionWheel wheel;
  ASSERT_TRUE(
      parse_attention_wheel("/w/flash_attn-2.6.3+cu123torch2.4cxx11abiFALSE-cp310-cp310-linux_x86_64.whl", wheel));
  EXPECT_EQ(wheel.version, "2.6.3");
  EXPECT_EQ(wheel.cuda, parse_version("12.3"));
  EXPECT_EQ(wheel.torch, parse_version("2.4"));
  EXPECT_EQ(wheel.cxx_abi, CxxAbi::kOld);
  ASSERT_TRUE(
      parse_attention_wheel("flash_attn-2.8.3%2Bcu12torch2.10cxx11abiTRUE-cp313-cp313-linux_aarch64.whl", wheel));
  EXPECT_EQ(wheel.torch, parse_version("2.10"));
  EXPECT_EQ(wheel.cxx_abi, CxxAbi::kNew);
  ASSERT_TRUE(parse_attention_wheel("flash_attn-2.8.3+cu128torch2.9-cp312-cp312-linux_x86_64.whl", wheel));
  EXPECT_EQ(wheel.cuda, parse_version("12.8"));
  EXPECT_EQ(wheel.torch, parse_version("2.9"));
  ASSERT_TRUE(parse_attention_wheel("flash_attn-2.8.3.post1+cu.12.8.torch.2.11-cp312-cp312-linux_x86_64.whl", wheel));
  EXPECT_EQ(wheel.version, "2.8.3.post1");
  EXPECT_EQ(wheel.cuda, parse_version("12.8"));
  EXPECT_EQ(wheel.torch, parse_version("2.11"));
  for (const auto& [label, torch] : {std::pair("pt270cu126", "2.7"), std::pair("pt28cu128", "2.8"),
                                     std::pair("pt210cu128", "2.10"), std::pair("pt25cu124", "2.5"),
                                     std::pair("pt2100cu128", "2.10"), std::pair("torch2.8cu128cxx11abiTRUE", "2.8")}) {
    ASSERT_TRUE(
        parse_attention_wheel(std::string("flash_attn-2.7.4+") + label + "-cp312-cp312-linux_x86_64.whl", wheel));
    EXPECT_EQ(wheel.torch, parse_version(torch)) << label;
    EXPECT_EQ(wheel.cuda.major_part(), 12) << label;
  }
  ASSERT_TRUE(
      parse_attention_wheel("flash_attn_3-3.0.0+cu132torch2.13gite2743ab-cp39-abi3-manylinux_2_34_aarch64.whl", wheel));
  EXPECT_EQ(wheel.torch, parse_version("2.13"));
  ASSERT_TRUE(parse_attention_wheel("flash_attn-2.8.3-cp312-cp312-linux_x86_64-x1a2b3c.whl", wheel));  // a variant
  EXPECT_EQ(wheel.platform, "linux_x86_64");
  ASSERT_TRUE(parse_attention_wheel("flash_attn_3-3.0.0b1-cp310-abi3-manylinux_2_28_x86_64.whl", wheel));
  EXPECT_FALSE(wheel.cuda.known() || wheel.torch.known());
  for (const char* bad :
       {"", ".whl", "a.whl", "flash_attn-2.8.3.tar.gz", "a-b-c.whl", "a-b-c-d-e-f-g.whl", "-----.whl"})
    EXPECT_FALSE(parse_attention_wheel(bad, wheel)) << bad;
}

TEST(Pick, TheOneThatFits) {
  const Pick found = pick(target(), of_2_8_3());
  ASSERT_TRUE(found.fits());
  EXPECT_EQ(found.candidates[0].wheel.file, "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl");
  ASSERT_EQ(found.verdicts.size(), 1u);
  EXPECT_EQ(found.verdicts[0].code, "PICK_MATCH");
  EXPECT_NE(found.verdicts[0].fix.find("pip install --no-deps 'https://"), std::string::npos);
  EXPECT_EQ(exit_code_of(found.verdicts), 0);

  PickTarget old_abi = target("3.9", "2.5.1", "12.4");
  old_abi.cxx_abi = CxxAbi::kOld;
  EXPECT_EQ(pick(old_abi, of_2_8_3()).candidates[0].wheel.file,
            "flash_attn-2.8.3+cu12torch2.5cxx11abiFALSE-cp39-cp39-linux_x86_64.whl");
  PickTarget arm = target("3.12", "2.9.0");
  arm.machine = "aarch64";
  EXPECT_TRUE(pick(arm, of_2_8_3()).fits());
}

// Each fact that is off gives the nearest wheel and names that fact alone.
TEST(Pick, TheNearestAndWhatDiffers) {
  struct Off {
    const char* what;
    PickTarget target;
    const char* nearest;
  };
  std::vector<Off> cases = {{"torch", target("3.12", "2.9.1", "12.8"), "torch2.8cxx11abiTRUE-cp312"},
                            {"python", target("3.14"), "torch2.8cxx11abiTRUE-cp313"},
                            {"cuda", target("3.12", "2.8.0", "13.0"), "torch2.8cxx11abiTRUE-cp312"},
                            {"glibc", target(), "torch2.8cxx11abiTRUE-cp312"},
                            {"machine", target("3.10"), "torch2.8cxx11abiTRUE-cp310"},
                            {"python", target("3.13"), "torch2.8cxx11abiTRUE-cp313"}};
  cases[3].target.glibc = parse_version("2.31");
  cases[4].target.machine = "ppc64le";
  cases[5].target.free_threaded = true;
  for (const Off& c : cases) {
    SCOPED_TRACE(c.what);
    const Pick found = pick(c.target, of_2_8_3());
    EXPECT_FALSE(found.fits());
    ASSERT_FALSE(found.candidates.empty());
    EXPECT_NE(found.candidates[0].wheel.file.find(c.nearest), std::string::npos) << found.candidates[0].wheel.file;
    ASSERT_EQ(found.candidates[0].differences.size(), 1u);
    EXPECT_EQ(found.candidates[0].differences[0].what, c.what);
    ASSERT_EQ(found.verdicts.size(), 3u);
    EXPECT_EQ(found.verdicts[0].code, "PICK_NEAREST");
    EXPECT_EQ(exit_code_of(found.verdicts), 1);
  }
  PickTarget cpu = target();
  cpu.cuda = {};
  cpu.torch_for_cpu = true;
  EXPECT_EQ(pick(cpu, of_2_8_3()).candidates[0].differences[0].what, "cuda");
  PickTarget just_enough = target();
  just_enough.glibc = parse_version("2.32");
  EXPECT_TRUE(pick(just_enough, of_2_8_3()).fits());
}

TEST(Pick, EitherAMatchOrTheNearest) {
  const auto match = pick(target(), of_2_8_3()).verdicts;
  const auto nearest = pick(target("3.12", "2.9.1"), of_2_8_3()).verdicts;
  expect_covered("PICK_MATCH", match, nearest);
  expect_covered("PICK_NEAREST", nearest, match);
}

TEST(Pick, WhatIsNotKnownIsAsked) {
  PickTarget bare;
  bare.machine = "x86_64";
  const Pick found = pick(bare, of_2_8_3());
  EXPECT_EQ(found.unknown.size(), 4u);
  EXPECT_FALSE(found.fits());
  expect_covered("CANNOT_TELL", found.verdicts, pick(target(), of_2_8_3()).verdicts);
}

TEST(Pick, FromAList) {
  std::vector<AttentionWheel> wheels(4);
  ASSERT_TRUE(
      parse_attention_wheel("flash_attn-2.7.4.post1+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl", wheels[0]));
  ASSERT_TRUE(parse_attention_wheel(
      "flash_attn-2.8.3+cu128torch2.8-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl", wheels[1]));
  ASSERT_TRUE(parse_attention_wheel("flash_attn_3-3.0.0-cp39-abi3-linux_x86_64.whl", wheels[2]));
  ASSERT_TRUE(parse_attention_wheel("flash_attn_4-4.0.0-py3-none-any.whl", wheels[3]));
  const Pick found = pick(target(), wheels);
  for (const Candidate& c : found.candidates)
    EXPECT_EQ(c.differences.empty(), c.wheel.package != "flash-attn-3") << c.wheel.file;  // its name says no torch
  EXPECT_EQ(found.candidates[0].wheel.version, "4.0.0");  // of those that fit, the latest
  PickTarget older = target("3.8");
  EXPECT_TRUE(pick(older, {wheels[3]}).fits());
  EXPECT_FALSE(pick(older, {wheels[2]}).fits());  // abi3 from 3.9 on
  PickTarget old_system = target();
  old_system.glibc = parse_version("2.27");
  EXPECT_TRUE(pick(old_system, {wheels[0]}).fits());  // 2.7.4.post1 is older than the change of systems
  EXPECT_TRUE(pick(old_system, {wheels[1]}).fits());  // the lowest of several platform tags counts
  EXPECT_EQ(pick(target(), {}).verdicts[0].severity, Severity::kError);
}

TEST(Pick, NoOtherPackage) {
  AttentionWheel wheel;
  ASSERT_TRUE(parse_attention_wheel("demo-1.0-py3-none-any.whl", wheel));
  const Pick found = pick(target(), {wheel});
  EXPECT_FALSE(found.fits());
  EXPECT_TRUE(found.candidates.empty());
  EXPECT_EQ(exit_code_of(found.verdicts), 1);
}

// What upstream's setup.py leaves when it compiled nothing is no answer, however well its tags fit.
TEST(Pick, NotThePretender) {
  std::vector<AttentionWheel> wheels(2);
  ASSERT_TRUE(parse_attention_wheel("flash_attn-2.8.3-py3-none-any.whl", wheels[0]));
  ASSERT_TRUE(
      parse_attention_wheel("flash_attn-2.8.3+cu12torch2.4cxx11abiFALSE-cp39-cp39-linux_x86_64.whl", wheels[1]));
  const Pick found = pick(target(), wheels);
  EXPECT_FALSE(found.fits());
  EXPECT_EQ(found.candidates[1].differences[0].what, "contents");
  ASSERT_TRUE(parse_attention_wheel("flash_attn-2.8.3+mica0.1.0-py3-none-any.whl", wheels[0]));
  EXPECT_TRUE(pick(target(), wheels).fits());  // Mica's drop-in is made so
}

TEST(Pick, TheUsualAbi) {
  EXPECT_EQ(usual_cxx_abi("2.5.1+cu124", "x86_64"), CxxAbi::kOld);
  EXPECT_EQ(usual_cxx_abi("2.6.0+cu124", "x86_64"), CxxAbi::kOld);
  EXPECT_EQ(usual_cxx_abi("2.6.0+cu126", "x86_64"), CxxAbi::kNew);
  EXPECT_EQ(usual_cxx_abi("2.6.0", "x86_64"), CxxAbi::kUnknown);
  EXPECT_EQ(usual_cxx_abi("2.6.0", "aarch64"), CxxAbi::kNew);
  EXPECT_EQ(usual_cxx_abi("2.7.0", "x86_64"), CxxAbi::kNew);
  EXPECT_EQ(usual_cxx_abi("", "x86_64"), CxxAbi::kUnknown);
}

}  // namespace
}  // namespace doctor
