#include "cli/bench_attention.h"

#include <fmt/format.h>

#include <memory>

#include "cli/bench_report.h"

namespace touchstone::cli {
namespace {

double tflops(double flops, const bench::Summary& us) { return flops / us.median * 1e-6; }

std::string line(const std::vector<std::string>& cells) {
  constexpr int kWidths[] = {-18, -5, -17, -7, -8, 10, 6, 8, 7};
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const int width = i < std::size(kWidths) ? kWidths[i] : 1;
    text += i == 0 ? "" : "  ";
    text += width < 0 ? fmt::format("{:<{}}", cells[i], -width)
                      : fmt::format("{:>{}}", cells[i], width);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

std::vector<std::string> cells_of(const bench::BenchRow& row, double fma_gflops) {
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
  cells.push_back(fma_gflops > 0 ? fmt::format("{:.2f}", rate * 1e3 / fma_gflops) : "");
  for (const bench::PeerTime& peer : row.peers) {
    cells.push_back(fmt::format("{} {:.2f}x ({:.3f})", peer.name, peer.us.median / row.us.median,
                                tflops(row.flops, peer.us)));
  }
  return cells;
}

Json json_of(const bench::BenchRow& row, double fma_gflops) {
  Json json = row_json(row);
  if (!row.right) return json;
  json["flops"] = row.flops;
  json["tflops"] = tflops(row.flops, row.us);
  if (fma_gflops > 0) json["of_fma"] = tflops(row.flops, row.us) * 1e3 / fma_gflops;
  for (std::size_t i = 0; i < row.peers.size(); ++i) {
    json["peers"][i]["tflops"] = tflops(row.flops, row.peers[i].us);
  }
  return json;
}

}  // namespace

bool bench_dense_attention(const bench::SessionOptions& session_options,
                           std::vector<bench::DenseAttentionProblem> problems, bool backward,
                           bool json, Json& document) {
  for (bench::DenseAttentionProblem& problem : problems) {
    problem.backward = backward;
    bench::check_dense_attention_memory(session_options, problem);
  }
  auto progress = std::make_unique<Progress>();
  progress->show("measuring what the machine can do");
  bench::Session session(session_options);
  bench::DenseAttentionBench bench(session, backward);
  session.start();
  bench.measure_fma();
  progress = nullptr;
  document["threads"] = session.context().threads();
  document["ceiling"] = ceiling_json(session.ceiling());
  document["fma_gflops"] = bench.fma_gflops();
  document["peer_versions"] = bench.peers();
  document["rows"] = Json::array();
  if (!json) {
    print_bench_header(session, bench.peers());
    if (bench.fma_gflops() > 0) {
      print(fmt::format("f32 multiply-add in registers: {:.1f} GFLOP/s\n", bench.fma_gflops()));
    }
    print("TFLOP/s count 4 B H S S D forward, 2.5 times that backward, half of it when causal\n\n");
    print(toned(line({"op", "dtype", "BxHxSxD", "mask", "impl", "us", "+-", "TFLOP/s",
                      bench.fma_gflops() > 0 ? "of fma" : "", "peers"}),
                Tone::dim) +
          "\n");
  }
  bool right = true;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    progress = std::make_unique<Progress>();
    progress->show(fmt::format("[{}/{}] {} {}", i + 1, problems.size(), problems[i].op(),
                               problems[i].shape()));
    const bench::BenchRow row = bench.measure(problems[i]);
    progress = nullptr;
    right = right && row.right;
    document["rows"].push_back(json_of(row, bench.fma_gflops()));
    if (!json) {
      print(toned(line(cells_of(row, bench.fma_gflops())), row.right ? Tone::plain : Tone::bad) +
            "\n");
    }
  }
  return right;
}

}  // namespace touchstone::cli
