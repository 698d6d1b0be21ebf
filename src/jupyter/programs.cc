// SPDX-License-Identifier: Apache-2.0
// What is asked of the Python that becomes a kernel. Python 3.8 and jupyter_client 6 understand it.
#include "jupyter/programs.h"

namespace jupyter {

const char* const kProbeProgram = R"py(
import json
answer = {}
try:
    import ipykernel, jupyter_client
    from ipykernel.kernelspec import RESOURCES, get_kernel_dict
    answer = {"spec": get_kernel_dict(), "resources": str(RESOURCES)}
except Exception as error:
    answer = {"error": "%s: %s" % (type(error).__name__, error)}
print("mica-kernel-answer:" + json.dumps(answer), flush=True)
)py";

namespace {

// What both programs that start a kernel do at their end, whatever happened before.
const char* const kStopKernel = R"py(
def stop(client, manager):
    try:
        if client is not None:
            client.stop_channels()
        manager.shutdown_kernel(now=True)
    except Exception:
        pass
)py";

}  // namespace

const std::string kStartProgram = std::string(kStopKernel) + R"py(
import json, os, sys, time

MARK = "mica-kernel-answer:"
INSIDE = r'''
def _mica_check():
    import importlib, importlib.util, json, platform, sys, traceback
    answer = {"executable": sys.executable, "python": platform.python_version(), "imports": [], "gpus": []}
    for name in ("torch", "flash_attn", "flash_attn_interface", "causal_conv1d", "mamba_ssm", "xformers", "mica"):
        try:
            if importlib.util.find_spec(name) is None:
                continue
        except Exception:
            continue
        item = {"module": name}
        try:
            module = importlib.import_module(name)
            item["version"] = str(getattr(module, "__version__", ""))
        except BaseException as error:
            item["error"] = "".join(traceback.format_exception_only(type(error), error)).strip()
        answer["imports"].append(item)
    torch = sys.modules.get("torch")
    try:
        answer["cuda"] = torch.version.cuda or ""
        if torch.cuda.is_available():
            answer["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except Exception:
        pass
    print("mica-kernel-answer:" + json.dumps(answer), flush=True)
_mica_check()
del _mica_check
'''

def main(kernels, name, seconds):
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager

    deadline = time.time() + seconds
    said = []
    with open(os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], "words"), "w+") as words:
        answer = {"started": False}
        manager = KernelManager(kernel_name=name, kernel_spec_manager=KernelSpecManager(kernel_dirs=[kernels]))
        client = None
        try:
            manager.start_kernel(stdout=words, stderr=words)
            client = manager.client()
            client.start_channels()
            client.wait_for_ready(timeout=max(1, deadline - time.time()))

            def hear(message):
                if message["header"]["msg_type"] == "stream":
                    said.append(message["content"]["text"])

            reply = client.execute_interactive(
                INSIDE, store_history=False, allow_stdin=False, timeout=max(1, deadline - time.time()), output_hook=hear
            )
            if reply["content"]["status"] != "ok":
                raise RuntimeError("the check inside ended with %s" % reply["content"].get("ename", "an error"))
            lines = [line for line in "".join(said).splitlines() if line.startswith(MARK)]
            if not lines:
                raise RuntimeError("the check inside printed nothing")
            answer = json.loads(lines[-1][len(MARK):])
            answer["started"] = True
        except Exception as error:
            answer["error"] = "%s: %s" % (type(error).__name__, error)
        finally:
            stop(client, manager)
        words.seek(0)
        answer["words"] = [line for line in words.read()[-20000:].splitlines() if line.strip()][-20:]
    return answer

os.environ["JUPYTER_RUNTIME_DIR"] = sys.argv[4]
answer = main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
print("\n" + MARK + json.dumps(answer), flush=True)
)py";

const std::string kNotebookProgram = std::string(kStopKernel) + R"py(
import json, os, re, sys, time

def main(path, name, seconds):
    from jupyter_client.manager import KernelManager

    with open(path, encoding="utf-8") as file:
        book = json.load(file)
    name = name or book.get("metadata", {}).get("kernelspec", {}).get("name", "")
    cells = ["".join(cell["source"]) for cell in book.get("cells", []) if cell.get("cell_type") == "code"]
    answer = {"cells": len(cells), "kernel": name, "failed_cell": 0}
    deadline = time.time() + seconds
    with open(os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], "words"), "w+") as words:
        manager = KernelManager(kernel_name=name) if name else KernelManager()
        client = None
        number = 0
        said = []
        try:
            manager.start_kernel(stdout=words, stderr=words, cwd=os.path.dirname(path))
            client = manager.client()
            client.start_channels()
            client.wait_for_ready(timeout=max(1, deadline - time.time()))

            def hear(message):
                content = message["content"]
                if message["header"]["msg_type"] == "stream":
                    said.append(content["text"])
                if message["header"]["msg_type"] == "error":
                    said.append("\n".join(content["traceback"]))

            for number, source in enumerate(cells, 1):
                del said[:]
                begun = client.execute(source, store_history=False, allow_stdin=False)
                while True:  # a kernel that dies sends nothing more
                    if not manager.is_alive():
                        raise RuntimeError("the kernel died")
                    if time.time() > deadline:
                        raise RuntimeError("it took longer than %d s" % seconds)
                    try:
                        message = client.get_iopub_msg(timeout=1)
                    except Exception:
                        continue
                    if message["parent_header"].get("msg_id") != begun:
                        continue
                    hear(message)
                    if message["header"]["msg_type"] == "error":
                        answer["error"] = "%s: %s" % (message["content"]["ename"], message["content"]["evalue"])
                    if message["header"]["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                        break
                if "error" in answer:
                    answer["failed_cell"] = number
                    break
        except Exception as error:
            answer["error"] = "%s: %s" % (type(error).__name__, error)
            answer["failed_cell"] = number or 1
        finally:
            stop(client, manager)
        words.seek(0)
        if answer["failed_cell"]:
            plain = re.sub(r"\x1b\[[0-9;]*m", "", "".join(said))
            answer["traceback"] = plain + "\n" + words.read()[-20000:] + "\n" + answer["error"]
            lines = cells[answer["failed_cell"] - 1].splitlines() if cells else []
            answer["first_line"] = lines[0] if lines else ""
    return answer

os.environ["JUPYTER_RUNTIME_DIR"] = sys.argv[4]
answer = main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
print("\nmica-kernel-answer:" + json.dumps(answer), flush=True)
)py";

}  // namespace jupyter
