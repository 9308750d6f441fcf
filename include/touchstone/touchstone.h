// Everything: the types and every operator.
#pragma once

#include "touchstone/cache/cache_view.h"            // IWYU pragma: export
#include "touchstone/cache/kv_cache.h"              // IWYU pragma: export
#include "touchstone/cache/layout.h"                // IWYU pragma: export
#include "touchstone/cache/snapshot.h"              // IWYU pragma: export
#include "touchstone/cache/transfer.h"              // IWYU pragma: export
#include "touchstone/core/context.h"                // IWYU pragma: export
#include "touchstone/core/device.h"                 // IWYU pragma: export
#include "touchstone/core/dtype.h"                  // IWYU pragma: export
#include "touchstone/core/error.h"                  // IWYU pragma: export
#include "touchstone/core/implementation_report.h"  // IWYU pragma: export
#include "touchstone/core/quant_format.h"           // IWYU pragma: export
#include "touchstone/core/random.h"                 // IWYU pragma: export
#include "touchstone/core/tensor.h"                 // IWYU pragma: export
#include "touchstone/core/weight_format.h"          // IWYU pragma: export
#include "touchstone/decode/request.h"              // IWYU pragma: export
#include "touchstone/decode/scorer.h"               // IWYU pragma: export
#include "touchstone/decode/tree.h"                 // IWYU pragma: export
#include "touchstone/ops/attention.h"               // IWYU pragma: export
#include "touchstone/ops/cached_attention.h"        // IWYU pragma: export
#include "touchstone/ops/kv_append.h"               // IWYU pragma: export
#include "touchstone/ops/layer_norm.h"              // IWYU pragma: export
#include "touchstone/ops/linear.h"                  // IWYU pragma: export
#include "touchstone/ops/rms_norm.h"                // IWYU pragma: export
#include "touchstone/ops/row_status.h"              // IWYU pragma: export
#include "touchstone/ops/sample.h"                  // IWYU pragma: export
#include "touchstone/ops/softmax_topk.h"            // IWYU pragma: export
#include "touchstone/plan/catalog.h"                // IWYU pragma: export
#include "touchstone/plan/planner.h"                // IWYU pragma: export
#include "touchstone/version.h"                     // IWYU pragma: export
