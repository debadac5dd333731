"""Merged adapters in the hands of PEFT and Transformers themselves."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app

pytestmark = pytest.mark.filterwarnings("ignore")  # what PEFT and Transformers say to each other
TEXT = torch.arange(12).reshape(2, 6)
SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_attention_heads=2, tie_word_embeddings=False))


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config)


KINDS = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "rslora": {"target_modules": ["q_proj", "down_proj"], "use_rslora": True},
    "patterns": {
        "target_modules": ["q_proj", "v_proj"],
        "rank_pattern": {"layers.1.self_attn.q_proj": 2, "v_proj": 6},
        "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 3, "v_proj": 7},
    },
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "bias": {"target_modules": ["q_proj"], "lora_bias": True},
    "biases": {"target_modules": ["q_proj"], "lora_bias": True, "bias": "all"},
    "gpt2": {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "bias": "all"},
}


def base(kind: str):
    if kind.startswith("bias"):
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**SMALL, num_attention_heads=2, attention_bias=True))
    return gpt2() if kind == "gpt2" else llama()


def save(folder: str, kind: str, seed: int, r: int = 4, alpha: int = 8, **more):
    """Save an adapter as if somebody had trained it; return its model."""
    config = LoraConfig(r=r, lora_alpha=alpha, task_type="CAUSAL_LM", **KINDS[kind], **more)
    model = get_peft_model(base(kind), config)
    torch.manual_seed(1000)
    for parameter in model.parameters():
        shared = 0.3 * torch.randn_like(parameter)
        if parameter.requires_grad and r == 4:
            parameter.data += shared
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model.eval()


def run(*words: object) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["merge", *map(str, words)])
    return found.exit_code, found.stdout, found.stderr.replace("\n", "")


def logits(model):
    with torch.no_grad():
        return model.eval()(TEXT).logits


@pytest.fixture(scope="module", autouse=True)
def _imported(transformers_import) -> None:
    """Not at the top: it takes ten seconds, and every worker collects every test."""
    global LoHaConfig, LoraConfig, PeftModel, get_peft_model
    global AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    from peft import LoHaConfig, LoraConfig, PeftModel, get_peft_model
    from transformers import (
        AutoModelForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
    )


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_one_adapter_comes_back_as_itself(kind: str):
    model = save("ann", kind, 1)
    code, said, _ = run("ann", "-o", "out", "--exact-stack")
    assert code == 1  # nobody to judge it by
    assert "the exact sum" in said
    found = PeftModel.from_pretrained(base(kind), "out")
    torch.testing.assert_close(logits(found), logits(model), atol=1e-5, rtol=0)
    assert not torch.allclose(logits(model), logits(base(kind)), atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_stack_is_the_weighted_sum_and_can_go_into_the_base(kind: str):
    """Ranks, alphas and rsLoRA are everybody's own."""
    ways = [(4, 8, {}), (4, 4, {}), (4, 8, {"lora_dropout": 0.1}), (4, 16, {})]
    if kind != "patterns":
        ways += [(2, 8, {}), (8, 3, {} if kind == "rslora" else {"use_rslora": True})]
    models = {f"p{j}": save(f"p{j}", kind, j, r, a, **more) for j, (r, a, more) in enumerate(ways)}
    code, said, _ = run(*models, "-o", "out", "--exact-stack", "--json", "--method", "mean")
    weights = {p: of["weight"] for p, of in json.loads(said)["parties"].items()}
    assert code in (0, 1)
    merged = {p: m.merge_and_unload().state_dict() for p, m in models.items()}
    expected = base(kind)
    summed = {
        key: sum(w * merged[p][key].double() for p, w in weights.items()) for key in merged["p0"]
    }
    expected.load_state_dict(summed)
    found = PeftModel.from_pretrained(base(kind), "out")
    torch.testing.assert_close(logits(found), logits(expected), atol=1e-4, rtol=0)
    base(kind).save_pretrained("base")
    code, _, wrong = run(
        *models, "-o", "whole", "--into", "base", "--with-config", "base", "--method", "mean"
    )
    assert code in (0, 1), wrong
    whole = AutoModelForCausalLM.from_pretrained("whole").state_dict()
    for name, values in expected.state_dict().items():
        torch.testing.assert_close(whole[name], values, atol=1e-4, rtol=0)


def test_liars_are_named_and_the_rank_is_cut():
    for j in range(6):
        save(f"p{j}", "plain", j)
    for name, by in ("flipped", -1.0), ("loud", 50.0):
        save(name, "plain", 7)
        tensors = load_file(f"{name}/adapter_model.safetensors")
        tensors = {k: v * (by if "lora_B" in k else 1) for k, v in tensors.items()}
        save_file(tensors, f"{name}/adapter_model.safetensors")
    code, said, _ = run("p*", "flipped", "loud", "-o", "out")
    assert code == 1
    assert "% of the squared update is cut off" in said
    config = json.loads(Path("out/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (4, 4, False)
    code, said, _ = run("p*", "flipped", "loud", "-o", "more", "--rank", "9", "--json")
    found = json.loads(said)
    assert found["rank"] == 9
    assert 0 < found["cut"] < 0.1
    for liar in "flipped", "loud":
        assert found["parties"][liar]["weight"] < 0.01
        assert found["parties"][liar]["reason"]
    PeftModel.from_pretrained(base("plain"), "more")


def test_a_centre_is_an_adapter_too():
    for j in range(4):
        save(f"p{j}", "plain", j)
    save("before", "plain", 9, r=6, alpha=3)
    code, _, wrong = run("p*", "-o", "out", "--base", "before")
    assert code == 0, wrong
    assert json.loads(Path("out/adapter_config.json").read_text())["r"] == 6
    found = cs.aggregate_files([f"p{j}" for j in range(4)], None, center="before")
    assert found.value is None


def edit(folder: str, **settings) -> None:
    path = Path(folder, "adapter_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_what_is_not_linear_is_refused_by_name():
    for j in range(3):
        save(f"p{j}", "plain", j)
    save("dora", "plain", 5, use_dora=True)
    loha = get_peft_model(llama(), LoHaConfig(r=4, target_modules=["q_proj", "v_proj"]))
    loha.save_pretrained("loha")
    save("pissa", "plain", 5, init_lora_weights="pissa")
    code, said, _ = run("p[0-2]", "dora", "loha", "pissa", "-o", "out", "--json")
    assert code == 1
    reasons = {p: of["reason"] for p, of in json.loads(said)["parties"].items() if of["rejected"]}
    assert set(reasons) == {"dora", "loha", "pissa"}
    assert "is DoRA, which is not linear in its factors" in reasons["dora"]
    assert "is of LOHA, expected LORA" in reasons["loha"]
    assert "'pissa', which changes the base model" in reasons["pissa"]
    code, _, wrong = run("dora", "-o", "other")
    assert code == 2
    assert "DoRA" in wrong


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"base_model_name_or_path": "else/other"}, "its base model is other, expected llama"),
        ({"task_type": "SEQ_CLS"}, 'its task is "SEQ_CLS", expected "CAUSAL_LM"'),
        ({"r": 5}, "has rank 4, adapter_config.json says 5"),
        ({"rank_pattern": {"v_proj": 3}}, "v_proj' has rank 4, adapter_config.json says 3"),
        ({"rank_pattern": {"(a+)+$": 3}}, "only names of modules are understood"),
        ({"rank_pattern": [1]}, "rank_pattern"),
        ({"lora_alpha": "8"}, "alpha is a number"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "only names of modules are understood"),
        ({"alpha_pattern": [3]}, "alpha_pattern is no mapping"),
        ({"peft_type": None}, "is of None, expected LORA"),
        ({"target_parameters": ["experts.w"]}, "LoRA of bare parameters"),
    ],
)
def test_who_is_for_something_else_or_says_what_is_not_so_is_rejected(settings, reason):
    homes = ["hub/llama", "../ann/llama/", "C:\\models\\llama", None]
    for j, home in enumerate(homes):
        save(f"p{j}", "plain", j)
        edit(f"p{j}", base_model_name_or_path=home)
    save("odd", "plain", 9)
    edit("odd", **settings)
    code, said, _ = run("p*", "odd", "-o", "out", "--json")
    parties = json.loads(said)["parties"]
    assert code == 1
    assert [p for p, of in parties.items() if of["rejected"]] == ["odd"]
    assert reason in parties["odd"]["reason"]


def test_the_output_says_no_more_than_the_heavy_ones_do():
    for j in range(5):
        save(f"p{j}", "plain", j)
        edit(
            f"p{j}",
            base_model_name_or_path="good/llama" if j else "evil/llama",
            auto_mapping={"parent_library": "os"} if not j else None,
            surprise="!",
        )
    assert run("p*", "-o", "out")[0] == 0
    config = json.loads(Path("out/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "good/llama"
    assert "surprise" not in config
    assert config["target_modules"] == ["q_proj", "v_proj"]


def test_models_and_adapters_are_not_mixed():
    for j in range(2):
        save(f"p{j}", "plain", j)
    llama().save_pretrained("whole")
    code, said, _ = run("p0", "p1", "whole", "-o", "out", "--json")
    assert "expected a PEFT folder" in json.loads(said)["parties"]["whole"]["reason"]
    code, said, _ = run("p0", "whole/model.safetensors", "whole", "-o", "out2", "--json")
    assert "a PEFT adapter, where most are models" in json.loads(said)["parties"]["p0"]["reason"]
    code, _, wrong = run("whole", "-o", "out3", "--rank", 3)
    assert (code, "for adapters" in wrong) == (2, True)
    code, _, wrong = run("p0", "-o", "out.safetensors")
    assert (code, "a folder that PEFT loads" in wrong) == (2, True)
    code, _, wrong = run("p0", "-o", "out4", "--rank", 3, "--exact-stack")
    assert (code, "its own rank" in wrong) == (2, True)


def test_a_base_that_does_not_fit_is_named_before_anything_is_written():
    save("p0", "plain", 0)
    gpt2().save_pretrained("gpt2")
    code, _, wrong = run("p0", "-o", "out", "--into", "gpt2")
    assert code == 2
    assert "no tensor 'model.layers.0.self_attn.q_proj.weight' to add to" in wrong
    small = LlamaForCausalLM(LlamaConfig(**{**SMALL, "hidden_size": 8}, num_attention_heads=2))
    small.save_pretrained("small")
    code, _, wrong = run("p0", "-o", "out", "--into", "small")
    assert code == 2
    assert "of shape (8, 8), the adapters are for floats of shape (16, 16)" in wrong
    assert not Path("out").exists()


@pytest.mark.parametrize("first", ["turned", "unsaid", "claimed"])
def test_the_accepted_say_how_the_base_holds_a_matrix(first: str):
    """Rejected parties do not; and q_proj is square, so that its shape does not tell."""
    folders = [f"p{j}" for j in range(4)]
    models = [save(folder, "plain", j) for j, folder in enumerate(folders)]
    for folder in folders:
        config = Path(folder, "adapter_config.json")
        said = json.loads(config.read_text())
        if folder == "p0" or first == "claimed":  # unsaid, it is false
            assert said.pop("fan_in_fan_out") is False
        if folder == "p0" and first != "unsaid":
            said["fan_in_fan_out"] = True
        config.write_text(json.dumps(said))
    llama().save_pretrained("base")
    _, told, _ = run(*folders, "-o", "out", "--into", "base", "--method", "mean", "--json")
    parties = json.loads(told)["parties"]
    assert ("fan_in_fan_out" in (parties["p0"]["reason"] or "")) == (first == "turned")
    name = "model.layers.0.self_attn.q_proj.weight"
    merged = [model.merge_and_unload().state_dict()[name] for model in models]
    mean = sum(parties[p]["weight"] * m for p, m in zip(folders, merged, strict=True))
    torch.testing.assert_close(load_file("out/model.safetensors")[name], mean, atol=1e-4, rtol=0)


def test_a_setting_that_one_party_alone_names_is_not_written():
    folders = [f"p{j}" for j in range(4)]
    for j, folder in enumerate(folders):
        save(folder, "plain", j)
        config = Path(folder, "adapter_config.json")
        said = json.loads(config.read_text())
        del said["fan_in_fan_out"]
        config.write_text(json.dumps(said | ({"fan_in_fan_out": True} if j == 0 else {})))
    run(*folders, "-o", "out")
    assert "fan_in_fan_out" not in json.loads(Path("out/adapter_config.json").read_text())


def test_pickles_are_not_opened():
    for j in range(3):
        save(f"p{j}", "plain", j)
    Path("p2/adapter_model.safetensors").rename("p2/adapter_model.bin")
    _, said, _ = run("p0", "p1", "p2", "-o", "out", "--json")
    assert "pickles are never loaded" in json.loads(said)["parties"]["p2"]["reason"]


def test_a_model_with_its_configuration_opens_in_transformers():
    for j in range(4):
        torch.manual_seed(j)
        model = llama()
        for parameter in model.parameters():
            parameter.data += 0.01 * torch.randn_like(parameter)
        model.save_pretrained(f"m{j}")
    config = Path("m0/config.json")
    config.write_text(config.read_text().replace("{", '{"auto_map": {"AutoModel": "x.Y"},', 1))
    Path("m0/evil.py").write_text("raise SystemExit")
    Path("m0/pytorch_model.bin").write_bytes(b"\x80\x04.")
    Path("m0/tokenizer.json").write_text("{}")
    models = [f"m{j}/model.safetensors" for j in range(4)]
    code, said, wrong = run(*models, "-o", "out", "--with-config", "m0")
    assert code == 0, wrong
    assert "copied: config.json, generation_config.json, tokenizer.json" in said
    assert "names a program of its own (auto_map), which was not copied" in said
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert Path("out/config.json").read_bytes() == config.read_bytes()
    found = AutoModelForCausalLM.from_pretrained("out")
    mean = sum(load_file(m)["lm_head.weight"] for m in models) / 4
    torch.testing.assert_close(found.lm_head.weight.data, mean, atol=1e-3, rtol=0)
    code, _, wrong = run(*models, "-o", "o.safetensors", "--with-config", "m0")
    assert (code, "lies in a folder" in wrong) == (2, True)
    Path("empty").mkdir()
    code, _, wrong = run(*models, "-o", "out2", "--with-config", "empty")
    assert (code, "no config.json in it" in wrong) == (2, True)
