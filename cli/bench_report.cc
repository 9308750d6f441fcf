#include "cli/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_line.h"
#include "machine/cpu_info.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

struct Column {
  const char* heading;
  int width;  // negative: to the left
};

// Printed row by row while the measurement goes on, so the widths are fixed beforehand.
const std::vector<Column> kBytesColumns = {
    {"op", -19}, {"dtype", -5}, {"shape", -12},   {"k", 4},        {"data in", -7}, {"impl", -8},
    {"us", 10},  {"+-", 6},     {"floor us", 10}, {"fraction", 8}, {"copy us", 10}, {"GB/s", 7}};
const std::vector<Column> kFlopsColumns = {{"op", -18},  {"dtype", -5},  {"BxHxSxD", -17},
                                           {"mask", -7}, {"impl", -8},   {"us", 10},
                                           {"+-", 6},    {"TFLOP/s", 8}, {"of fma", 7}};

std::string line(const std::vector<Column>& columns, const std::vector<std::string>& cells) {
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const int width = i < columns.size() ? columns[i].width : 13;
    text += i == 0 ? "" : "  ";
    text += width < 0 ? fmt::format("{:<{}}", cells[i], -width)
                      : fmt::format("{:>{}}", cells[i], width);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

std::string microseconds(double us) {
  return us < 100 ? fmt::format("{:.2f}", us) : fmt::format("{:.1f}", us);
}

double tflops(double flops, const machine::Summary& us) { return flops / us.median * 1e-6; }

std::vector<std::string> bytes_cells(const bench::BenchRow& row) {
  const std::string dtype = row.format.empty() ? std::string(name_of(row.dtype)) : row.format;
  std::vector<std::string> cells = {row.heads.empty() ? row.op : "attention " + row.heads,
                                    dtype,
                                    row.shape(),
                                    row.k > 0 ? std::to_string(row.k) : "",
                                    std::string(cases::name_of(row.regime)),
                                    row.implementation};
  if (!row.right) {
    cells.push_back(fmt::format("WRONG, error {:.1e}", row.error));
    return cells;
  }
  const double rate = static_cast<double>(row.bytes) / row.us.median * 1e-3;
  for (const std::string& cell :
       {microseconds(row.us.median), fmt::format("{:.1f}%", 100 * row.us.spread),
        microseconds(row.floor_us), fmt::format("{:.2f}", row.fraction), microseconds(row.copy_us),
        fmt::format("{:.1f}", rate)}) {
    cells.push_back(cell);
  }
  for (const bench::PeerTime& peer : row.peers) {
    cells.push_back(fmt::format("{} {:.2f}x", peer.name, peer.us.median / row.us.median));
  }
  return cells;
}

// Tiles of AMX are no vectors.
bool compares_with_fma(const bench::BenchRow& row, double fma_gflops) {
  return fma_gflops > 0 && row.implementation != "amx";
}

std::vector<std::string> flops_cells(const bench::BenchRow& row, double fma_gflops) {
  std::vector<std::string> cells = {row.op, std::string(name_of(row.dtype)), row.heads, row.format,
                                    row.implementation};
  if (!row.right) {
    cells.push_back(fmt::format("WRONG, error {:.1e}", row.error));
    return cells;
  }
  const double rate = tflops(row.flops, row.us);
  cells.push_back(fmt::format("{:.1f}", row.us.median));
  cells.push_back(fmt::format("{:.1f}%", 100 * row.us.spread));
  cells.push_back(fmt::format("{:.3f}", rate));
  cells.push_back(
      compares_with_fma(row, fma_gflops) ? fmt::format("{:.2f}", rate * 1e3 / fma_gflops) : "");
  for (const bench::PeerTime& peer : row.peers) {
    cells.push_back(fmt::format("{} {:.2f}x ({:.3f})", peer.name, peer.us.median / row.us.median,
                                tflops(row.flops, peer.us)));
  }
  return cells;
}

}  // namespace

std::string machine_name(Device device) {
  if (device.is_cuda()) return cuda_devices()[static_cast<std::size_t>(device.index)].name;
  const machine::CpuInfo cpu = machine::cpu_info();
  return fmt::format("{}, {} usable cores", cpu.model, cpu.usable_cores);
}

Json row_json(const bench::BenchRow& row, double fma_gflops) {
  Json peers = Json::array();
  for (const bench::PeerTime& peer : row.peers) {
    peers.push_back({{"name", peer.name}, {"us", peer.us.median}, {"spread", peer.us.spread}});
  }
  Json json = {{"op", row.op},
               {"impl", row.implementation},
               {"device", name_of(row.device)},
               {"dtype", name_of(row.dtype)},
               {"shape", {row.rows, row.cols}}};
  if (row.k > 0) json["k"] = row.k;
  if (!row.heads.empty()) json["heads"] = row.heads;
  if (!row.format.empty()) json["format"] = row.format;
  json.update({{"regime", cases::name_of(row.regime)},
               {"sets", row.sets},
               {"us", row.us.median},
               {"best_us", row.us.best},
               {"spread", row.us.spread},
               {"bytes", row.bytes},
               {"floor_us", row.floor_us},
               {"fraction", row.fraction},
               {"triad_floor_us", row.triad_floor_us},
               {"read_floor_us", row.read_floor_us},
               {"copy_gbs", row.copy_gbs},
               {"copy_same_size_us", row.copy_us},
               {"error", row.error},
               {"correct", row.right},
               {"peers", peers}});
  if (row.flops == 0 || !row.right) return json;
  json["flops"] = row.flops;
  json["tflops"] = tflops(row.flops, row.us);
  if (compares_with_fma(row, fma_gflops))
    json["of_fma"] = tflops(row.flops, row.us) * 1e3 / fma_gflops;
  for (std::size_t i = 0; i < row.peers.size(); ++i) {
    json["peers"][i]["tflops"] = tflops(row.flops, row.peers[i].us);
  }
  return json;
}

Json ceiling_json(const machine::Ceiling& ceiling) {
  return {{"copy", ceiling.copy_name},
          {"copy_gbs", ceiling.copy_gbs},
          {"copy_best_gbs", ceiling.copy_best_gbs},
          {"triad_gbs", ceiling.triad_gbs},
          {"read_gbs", ceiling.read_gbs},
          {"buffer_bytes", ceiling.buffer_bytes}};
}

void print_bench_header(const bench::Session& session, const std::vector<std::string>& peers,
                        const std::string& explanation, double fma_gflops) {
  const machine::Ceiling& ceiling = session.ceiling();
  const Context& context = session.context();
  print(fmt::format(
      "{}{}; {}; {}\n", machine_name(context.device()),
      session.cuda() ? "" : fmt::format(", {} threads, {}", context.threads(), simd_target()),
      machine::utc_now(), command_line()));
  print(
      fmt::format("copy {:.1f} GB/s ({}, best round {:.1f}), 2 reads : 1 write {:.1f} GB/s, "
                  "reads {:.1f} GB/s, buffers of {}\n",
                  ceiling.copy_gbs, ceiling.copy_name, ceiling.copy_best_gbs, ceiling.triad_gbs,
                  ceiling.read_gbs, bytes_string(ceiling.buffer_bytes)));
  if (fma_gflops > 0) {
    print(fmt::format("f32 multiply-add in registers: {:.1f} GFLOP/s\n", fma_gflops));
  }
  print(fmt::format("peers: {}; \"naive 2.00x\" = it takes twice our time\n{}\n",
                    peers.empty() ? "none" : fmt::format("{}", fmt::join(peers, ", ")),
                    explanation));
}

void BenchTable::print_row(const bench::BenchRow& row) {
  const bool flops = row.flops > 0;
  const std::vector<Column>& columns = flops ? kFlopsColumns : kBytesColumns;
  if (printed_ != (flops ? 1 : 0)) {
    std::vector<std::string> headings;
    for (const Column& column : columns) headings.emplace_back(column.heading);
    print((printed_ < 0 ? "" : "\n") + colored(line(columns, headings), Color::dim) + "\n");
    printed_ = flops ? 1 : 0;
  }
  const std::string text = line(columns, flops ? flops_cells(row, fma_gflops_) : bytes_cells(row));
  print(colored(text, row.right ? Color::plain : Color::bad) + "\n");
}

}  // namespace touchstone::cli
