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

const char* const kStartProgram = R"py(
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
            try:
                if client is not None:
                    client.stop_channels()
                manager.shutdown_kernel(now=True)
            except Exception:
                pass
        words.seek(0)
        answer["words"] = [line for line in words.read()[-20000:].splitlines() if line.strip()][-20:]
    return answer

os.environ["JUPYTER_RUNTIME_DIR"] = sys.argv[4]
answer = main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
print("\n" + MARK + json.dumps(answer), flush=True)
)py";

}  // namespace jupyter
