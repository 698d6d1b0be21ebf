// SPDX-License-Identifier: Apache-2.0
#include "tests/doctor/fixtures.h"

#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "support/sha256.h"

namespace fixtures {
namespace {

std::string little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += i < 8 ? char(value >> (8 * i)) : char(0);
  return out;
}

std::string deflated(const std::string& bytes) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = uInt(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = uInt(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string padded(std::string bytes, std::size_t to) {
  while (bytes.size() % to != 0) bytes += '\0';
  return bytes;
}

}  // namespace

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "mica-doctor-XXXXXX").string();
  if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
  path_ = std::filesystem::canonical(name).string();
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string write_file(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot run: " + command);
  std::string out;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, got);
  const int status = pclose(pipe);
  if (status != 0) throw std::runtime_error(command + ": " + out);
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

void compile(const std::string& output, const std::string& source, const std::string& flags) {
  const bool is_cxx = flags.find("-x c++") != flags.npos;
  const std::string file = write_file(output + (is_cxx ? ".cc" : ".c"), source);
  // Relative to its folder, so that needed libraries keep their plain names.
  output_of("cd '" + std::filesystem::path(output).parent_path().string() + "' && " + (is_cxx ? "g++ " : "gcc ") + "'" +
            file + "' -o '" + output + "' -w " + flags + " 2>&1");
}

std::string make_zip(const std::vector<ZipFile>& files, const std::string& comment, int entries_announced) {
  std::string body, directory;
  for (const ZipFile& file : files) {
    const std::string data = file.deflate ? deflated(file.bytes) : file.bytes;
    const uint64_t plain = file.declared_bytes >= 0 ? uint64_t(file.declared_bytes) : file.bytes.size();
    const uint32_t crc =
        file.crc >= 0 ? uint32_t(file.crc)
                      : uint32_t(crc32(0, reinterpret_cast<const Bytef*>(file.bytes.data()), uInt(file.bytes.size())));
    const int method = file.method >= 0 ? file.method : (file.deflate ? 8 : 0);
    const bool late = file.flags & 8;
    const std::string local_name = file.local_name.empty() ? file.name : file.local_name;
    const uint64_t offset = file.offset >= 0 ? uint64_t(file.offset) : body.size();
    const std::string extra = file.wide ? little(1, 2) + little(16, 2) + little(plain, 8) + little(data.size(), 8) : "";
    const uint64_t stored32 = file.wide ? 0xffffffff : data.size(), plain32 = file.wide ? 0xffffffff : plain;
    body += little(0x04034b50, 4) + little(20, 2) + little(file.flags, 2) + little(method, 2) + little(0, 4) +
            little(late ? 0 : crc, 4) + little(late ? 0 : stored32, 4) + little(late ? 0 : plain32, 4) +
            little(local_name.size(), 2) + little(extra.size(), 2) + local_name + extra + data;
    if (late) body += little(0x08074b50, 4) + little(crc, 4) + little(data.size(), 4) + little(plain, 4);
    directory += little(0x02014b50, 4) + little(20, 1) + little(3, 1) + little(20, 2) + little(file.flags, 2) +
                 little(method, 2) + little(0, 4) + little(crc, 4) + little(stored32, 4) + little(plain32, 4) +
                 little(file.name.size(), 2) + little(extra.size(), 2) + little(0, 2) + little(0, 2) + little(0, 2) +
                 little(uint64_t(file.mode) << 16, 4) + little(offset, 4) + file.name + extra;
  }
  const uint64_t count = entries_announced >= 0 ? uint64_t(entries_announced) : files.size();
  return body + directory + little(0x06054b50, 4) + little(0, 4) + little(count, 2) + little(count, 2) +
         little(directory.size(), 4) + little(body.size(), 4) + little(comment.size(), 2) + comment;
}

std::vector<ZipFile> wheel_files(const WheelParts& parts) {
  const std::string info =
      parts.name + "-" + (parts.metadata_version.empty() ? parts.version : parts.metadata_version) + ".dist-info/";
  std::vector<std::pair<std::string, std::string>> all = parts.files;
  all.emplace_back(info + "METADATA",
                   "Metadata-Version: 2.1\nName: " + (parts.metadata_name.empty() ? parts.name : parts.metadata_name) +
                       "\nVersion: " + (parts.metadata_version.empty() ? parts.version : parts.metadata_version) +
                       "\n" + parts.more_metadata + "\nA body: ignored\n");
  all.emplace_back(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: " +
                                       (parts.wheel_tag.empty() ? parts.tag : parts.wheel_tag) + "\n" +
                                       parts.more_wheel);
  std::string record;
  std::vector<ZipFile> out;
  for (const auto& [name, bytes] : all) {
    support::Sha256 hash;
    hash.update({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    record += name + ",sha256=" + support::url_base64(hash.digest()) + "," + std::to_string(bytes.size()) + "\n";
    out.push_back({name, bytes});
  }
  out.push_back({info + "RECORD", record + info + "RECORD,,\n"});
  return out;
}

std::string make_container(const std::vector<GpuEntry>& entries) {
  std::string body;
  for (const GpuEntry& entry : entries) {
    const std::string payload = padded(entry.payload.empty() ? std::string(64, 'x') : entry.payload, 8);
    const bool compressed = entry.flags & 0xe000;
    std::string header = little(entry.kind, 2) + little(0x101, 2) + little(entry.header_bytes, 4) +
                         little(payload.size(), 8) +
                         little(compressed ? (entry.payload.empty() ? 64 : entry.payload.size()) : 0, 4) +
                         little(0, 4) + little(entry.minor, 2) + little(entry.major, 2) + little(entry.sm, 4) +
                         little(0, 8) + little(entry.flags, 8) + little(0, 8) + little(entry.plain_bytes, 8);
    header.resize(entry.header_bytes, '\0');
    body += header + payload;
  }
  return little(0xba55ed50, 4) + little(1, 2) + little(16, 2) + little(body.size(), 8) + body;
}

// Header, section bytes, section headers: nothing else of ELF is needed.
std::string make_cubin(const CubinParts& parts) {
  struct Section {
    std::string name;
    uint32_t type;
    std::string bytes;
  };
  const bool is_new = parts.abi >= 8;
  std::vector<Section> sections = {{"", 0, ""}};
  if (is_new) {
    const auto note = [](uint32_t type, const std::string& text) {
      return little(12, 4) + little(text.size(), 4) + little(type, 4) + "NVIDIA Corp" + '\0' + text;
    };
    const std::string arch =
        "-arch sm_" + std::to_string(parts.sm) + (parts.suffix ? std::string(1, parts.suffix) : "") + " -m 64 ";
    sections.push_back({".note.nv.tkinfo", 7,
                        note(2000, padded(std::string("ptxas\0Cuda compilation tools, release ", 38) +
                                              std::to_string(parts.toolkit / 10) + "." +
                                              std::to_string(parts.toolkit % 10) + '\0' + arch + '\0',
                                          4))});
    sections.push_back({".note.nv.cuinfo", 7,
                        note(1000, little(2, 2) + little(parts.sm, 2) + little(parts.toolkit, 2) + little(0, 2))});
    sections.push_back({".nv.compat", 0x70000086, little(2, 1) + little(9, 1) + little(parts.suffix == 'a', 2)});
  }
  for (const std::string& kernel : parts.kernels) sections.push_back({".text." + kernel, 1, std::string(128, '\x11')});
  std::string names;
  std::vector<uint64_t> name_at;
  sections.push_back({".shstrtab", 3, ""});
  for (const Section& section : sections) {
    name_at.push_back(names.size());
    names += section.name + '\0';
  }
  sections.back().bytes = names;
  std::string body;
  std::string table;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    table += little(name_at[i], 4) + little(sections[i].type, 4) + little(0, 16) + little(64 + body.size(), 8) +
             little(sections[i].bytes.size(), 8) + little(0, 24);
    body += padded(sections[i].bytes, 8);
  }
  const uint64_t flags =
      is_new ? 0x06000004u | uint64_t(parts.sm) << 8
             : 0x500u | uint64_t(parts.sm) | uint64_t(parts.sm) << 16 | (parts.suffix == 'a' ? 0x800u : 0u);
  std::string header = std::string(
                           "\x7f"
                           "ELF\x02\x01\x01",
                           7) +
                       little(is_new ? 0x41 : 0x33, 1) + little(parts.abi, 1) + little(0, 7) + little(2, 2) +
                       little(190, 2) + little(is_new ? 1 : parts.toolkit, 4) + little(0, 16) +
                       little(64 + body.size(), 8) + little(flags, 4) + little(64, 2) + little(56, 2) + little(0, 2) +
                       little(64, 2) + little(sections.size(), 2) + little(sections.size() - 1, 2);
  return header + body + table;
}

std::string make_gpu_code(const std::vector<std::string>& archs, uint64_t compression, int abi) {
  std::vector<GpuEntry> entries;
  for (const std::string& arch : archs) {
    const bool ptx = arch.starts_with("ptx");
    const std::string text = ptx ? arch.substr(3) : arch;
    GpuEntry entry;
    entry.kind = ptx ? 1 : 2;
    entry.sm = std::stoi(text);
    entry.flags |= compression | (text.back() == 'a' ? 0x100000 : 0) | (text.back() == 'f' ? 0x200000 : 0);
    if (ptx) entry.major = 8, entry.minor = 4;
    if (!ptx) entry.minor = abi;
    if (!ptx && compression == 0)
      entry.payload = make_cubin({abi, entry.sm, text.back() == 'a' ? 'a' : char(0), abi >= 8 ? 130 : 124});
    if (compression != 0) entry.plain_bytes = 9000;
    entries.push_back(entry);
  }
  return make_container(entries);
}

}  // namespace fixtures
