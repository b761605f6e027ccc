#!/usr/bin/env bash
# Makes src/bindings.rs from UCX's headers. Needed only to bind more of UCX: the output is checked in, so that a build
# needs neither libclang nor UCX. Usage: bindgen.sh UCX_SOURCE_TREE (configured, so that ucp_version.h exists).
set -euo pipefail

source=${1:?usage: bindgen.sh UCX_SOURCE_TREE}
here=$(cd "$(dirname "$0")" && pwd)

functions=(
    ucp_get_version ucs_status_string
    ucp_config_read ucp_config_modify ucp_config_release
    ucp_init_version ucp_cleanup ucp_context_print_info
    ucp_mem_map ucp_mem_unmap ucp_rkey_pack ucp_rkey_buffer_release ucp_ep_rkey_unpack ucp_rkey_destroy
    ucp_worker_create ucp_worker_destroy ucp_worker_query ucp_worker_progress ucp_worker_arm ucp_worker_get_efd
    ucp_listener_create ucp_listener_destroy ucp_listener_query ucp_listener_reject ucp_conn_request_query
    ucp_ep_create ucp_ep_close_nbx ucp_ep_query ucp_ep_print_info ucp_ep_flush_nbx
    ucp_worker_set_am_recv_handler ucp_am_send_nbx ucp_am_recv_data_nbx ucp_am_data_release
    ucp_get_nbx ucp_put_nbx ucp_request_free
)
# Enumerations that no function names, but whose constants are its arguments.
enumerations='ucp_(feature|dt_type|op_attr_t|dt_iov_t|err_handling_mode_t|send_am_flags|am_cb_flags|am_recv_attr_t|ep_close_flags_t|ep_params_flags_field|params_field|mem_map_params_field|worker_params_field|worker_attr_field|listener_params_field|listener_attr_field|conn_request_attr_field|ep_params_field|ep_attr_field|am_handler_param_field)|ucs_thread_mode_t'

header=$(mktemp --suffix=.h)
trap 'rm -f "$header"' EXIT
echo '#include <ucp/api/ucp.h>' >"$header"

bindgen "$header" \
    --dynamic-loading Ucp --dynamic-link-require-all \
    --default-enum-style consts --no-prepend-enum-name --no-layout-tests --no-doc-comments --no-derive-debug --wrap-unsafe-ops \
    --rust-target 1.89 --rust-edition 2024 \
    --allowlist-function "$(IFS='|'; echo "${functions[*]}")" \
    --allowlist-type "$enumerations" \
    --blocklist-type 'sockaddr.*|socklen_t|sa_family_t|FILE|_IO.*|__.*' \
    --raw-line '// Declarations from ucp/api/ucp.h of UCX 1.23. Copyright (c) NVIDIA CORPORATION & AFFILIATES, 2001-2023, and' \
    --raw-line '// the contributors to UCX (https://openucx.org), BSD-3-Clause. Made by ../bindgen.sh; do not edit.' \
    --raw-line 'use libc::{FILE, sockaddr, sockaddr_storage, socklen_t};' \
    --output "$here/src/bindings.rs" \
    -- -I"$source/src" ${CLANG_INCLUDE:+-I"$CLANG_INCLUDE"}
rustfmt --edition 2024 --config-path "$here/../../rustfmt.toml" "$here/src/bindings.rs"
