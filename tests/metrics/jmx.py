"""Names of MBeans as JMX writes them."""

from kjbod.metrics.mbeans import MBean


def object_name(bean: MBean) -> str:
    """``domain:type=…,name=…``, with ``*`` for the value of a further property."""
    properties = [f"type={bean.type}", *([f"name={bean.name}"] if bean.name else [])]
    return f"{bean.domain}:{','.join([*properties, *([f'{bean.key}=*'] if bean.key else [])])}"
