# Sourced by scripts/k8s-test.sh: objects of Fluid, as an API server looks at them. Fluid itself does not run.

# Fluid's definitions are in its repository alone: FLUID_CRDS is the directory charts/fluid/fluid/crds of a copy of it.
takes_objects_of_fluid() {
    local definitions=${FLUID_CRDS:-} group=apis/data.fluid.io/v1alpha1 plural
    if [[ -z $definitions ]]; then
        skip "objects of Fluid are compared with golden files alone: FLUID_CRDS names no directory with its definitions"
        return
    fi
    for plural in cacheruntimeclasses cacheruntimes datasets; do
        kube_apply "apis/apiextensions.k8s.io/v1/customresourcedefinitions/$plural.data.fluid.io" \
            <"$definitions/data.fluid.io_$plural.yaml" >/dev/null
        eventually 60 "the API server has $plural" kube "$group/$plural"
    done

    would_take "$group/cacheruntimeclasses/forebay" <deploy/fluid/cacheruntimeclass.yaml
    document 1 | would_take "$group/namespaces/default/datasets/imagenet"
    document 2 | would_take "$group/namespaces/default/cacheruntimes/imagenet"
    # It does look at them.
    if document 2 | sed 's/^  runtimeClassName:/  runtimeClasName:/' |
        would_take "$group/namespaces/default/cacheruntimes/imagenet" 2>/dev/null
    then
        return 1
    fi
    ok "an API server with Fluid's definitions takes a CacheRuntimeClass, a Dataset and a CacheRuntime"
    guide operator.md "Fluid"
    ok "and makes them by the commands of the guide"
}

# document NUMBER: of the example.
document() { awk -v wanted="$1" 'BEGIN { at = 1 } /^---$/ { at++; next } at == wanted' deploy/fluid/dataset.yaml; }

# would_take PATH: server-side, what is on standard input, with no field that there is not. Nothing is made.
would_take() {
    kube_apply "$1" 'dryRun=All&fieldValidation=Strict' >"$work/said" || { cat "$work/said" >&2; return 1; }
}
